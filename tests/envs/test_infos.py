import logging
import math
from typing import Any

import numpy as np
import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.envs.gym import EnvConfig, make_batch
from asyncrl.envs.infos import EpisodeInfo


def at_end(info: Any, *, vector: bool, keys: tuple[str, ...] = ()) -> dict[str, float]:
    """Return what is collected where the second of two environments ends an episode."""
    infos = info if vector else [{}, info]
    rows = EpisodeInfo(keys, 2, "MyEnv-v0").take(infos, np.array([1])) or {}
    assert all(math.isnan(row[0]) for row in rows.values())
    return {name: float(row[1]) for name, row in rows.items()}


@pytest.mark.parametrize(
    ("info", "vector", "success"),
    [
        ({"is_success": True}, False, 1.0),
        ({"is_success": np.zeros(1, np.float32)}, False, 0.0),
        ({"is_success": None, "success": 1}, False, 1.0),
        ({"success": "yes"}, False, None),
        ({}, False, None),
        ({"is_success": np.array([0.0, 1.0])}, True, 1.0),
        ({"is_success": np.array([0.0, 1.0]), "_is_success": np.array([True, False])}, True, None),
        ({"is_success": np.array([None, True])}, True, 1.0),
        ({"is_success": 1.0}, True, None),
    ],
)
def test_success_is_read_from_infos_that_report_it(
    info: Any, vector: bool, success: float | None
) -> None:
    assert at_end(info, vector=vector) == ({} if success is None else {"success": success})


def test_a_key_that_is_missing_is_named_once_with_the_keys_there_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    collected = EpisodeInfo(("distanse", "speed"), 1, "MyEnv-v0")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            collected.take([{"distance": 1.0, "speed": 2.0}], np.array([0]))
    [message] = caplog.messages
    assert "'distanse'" in message
    assert "MyEnv-v0" in message
    assert "'distance', 'speed'" in message


@pytest.mark.parametrize("key", ["", "sum:", "last:distance", ":distance"])
def test_keys_that_mean_nothing_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="sum, mean, min, max"):
        EnvConfig(id="CartPole-v1", info=(key,))
    with pytest.raises(ConfigError, match=repr(key)):
        make_batch(lambda: None, 1, info=(key,))  # type: ignore[arg-type,return-value]
