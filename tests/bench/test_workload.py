"""What the command line can say of the load: settings and their refusals."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.bench.workload import Workload
from asyncrl.core.errors import ConfigError
from tests.bench.workloads import tiny
from tests.test_architecture import loaded_by


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seconds": 0.0}, "--seconds must be positive, got 0"),
        ({"seconds": float("nan")}, "--seconds must be positive"),
        ({"warm_up_seconds": -1.0}, "--warm-up-seconds must be 0 or more, got -1"),
        ({"actors": 0}, "--actors must be at least 1, got 0"),
        ({"envs_per_actor": 0}, "--envs-per-actor must be at least 1, got 0"),
        ({"segments_per_message": -2}, "--segments-per-message must be at least 1, got -2"),
        ({"frame_stack": 0}, "--frame-stack must be at least 1, got 0"),
        ({"capacity": 0}, "--capacity must be at least 1, got 0"),
        ({"batch_size": 0}, "--batch-size must be at least 1, got 0"),
    ],
)
def test_settings_that_cannot_work_are_named_as_flags(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Workload(**changes)


def test_arguments_reach_the_environment() -> None:
    workload = tiny(env_kwargs={"max_episode_steps": 7})
    assert workload.env_config.make_plain().spec.max_episode_steps == 7


def test_senders_and_receivers_load_no_torch() -> None:
    assert "torch" not in loaded_by("asyncrl.bench.stage_transport")
