"""Settings from Python are of the kinds that fields declare, in every config there is."""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal

import numpy as np
import pytest

from asyncrl.actor.trajectory_processor import TrajectoryConfig
from asyncrl.agents.parts.exploration import EpsilonLadder
from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import check_declared
from asyncrl.envs.atari import AtariConfig
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.async_trainer import CollectThenTrain
from asyncrl.replay.sequences import PrioritizedSequenceReplayConfig
from asyncrl.training.offline import OfflineConfig
from asyncrl.training.presets import preset, preset_lines
from asyncrl.training.synchronous import SyncConfig

if typing.TYPE_CHECKING:
    from decimal import Decimal

ROOTS = (
    *map(preset, preset_lines()),
    AtariConfig(),
    CollectThenTrain(env_steps=10, opt_steps=10),
    EnvConfig(id="CartPole-v1"),
    EpsilonLadder(),
    OfflineConfig(),
    PrioritizedSequenceReplayConfig(),
    SyncConfig(),
    TrajectoryConfig(),
)


def in_tree(config: Any) -> Iterator[Any]:
    yield config
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(value := getattr(config, field.name)):
            yield from in_tree(value)


CONFIGS = {type(config): config for root in ROOTS for config in in_tree(root)}


def misfits() -> Iterator[tuple[Any, str, object]]:
    """Yield a config, the name of a setting, and what is to be refused there."""
    for cls, config in CONFIGS.items():
        for name, hint in typing.get_type_hints(cls).items():
            union = typing.get_origin(hint) in {typing.Union, UnionType}
            kinds = typing.get_args(hint) if union else (hint,)
            if int in kinds or float in kinds:
                yield config, name, math.nan
            if int in kinds and float not in kinds:
                yield config, name, 64.0
                yield config, name, "64"
            if typing.get_origin(hint) is Literal:
                yield config, name, "offf"


def test_there_are_misfits_of_each_kind() -> None:
    found = {(type(config).__name__, name) for config, name, _ in misfits()}
    assert len(found) > 200
    assert {
        ("AsyncTrainerConfig", "batch_size"),
        ("EvaluationConfig", "where"),
        ("ReplayBufferProxyConfig", "overflow"),
        ("RestartPolicyConfig", "backoff_s"),
        ("DQNConfig", "loss"),
    } <= found


@pytest.mark.parametrize(
    ("config", "name", "value"),
    [
        pytest.param(*found, id=f"{type(found[0]).__name__}.{found[1]}={found[2]}")
        for found in misfits()
    ],
)
def test_every_config_refuses_misfits_by_name(config: Any, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"{name} must be .*, got {re.escape(repr(value))}"):
        dataclasses.replace(config, **{name: value})


@pytest.mark.parametrize(
    ("config", "name"),
    [
        pytest.param(config, field.name, id=f"{cls.__name__}.{field.name}")
        for cls, config in CONFIGS.items()
        for field in dataclasses.fields(cls)
        if field.name.endswith("seed")
    ],
)
def test_every_seed_is_0_or_more(config: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} must be 0 or more, got -1"):
        dataclasses.replace(config, **{name: -1})


@dataclass(frozen=True, kw_only=True)
class Settings:
    count: int = 1
    share: float | None = None
    rate: float | str = 0.5
    kind: Literal["a", "b", "c"] = "a"
    on: bool = True
    name: str = ""

    def __post_init__(self) -> None:
        check_declared(self, "mine")


@pytest.mark.parametrize(
    "settings",
    [
        {"count": np.int64(3), "share": np.float32(0.5)},
        {"share": 1, "rate": 2, "kind": "c"},
        {"share": math.inf, "rate": "fast"},
        {"on": 1, "name": None},
    ],
)
def test_what_fits_and_what_is_neither_number_nor_choice_is_taken(settings: Any) -> None:
    Settings(**settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"count": 2.0}, "mine.count must be a whole number, got 2.0"),
        ({"count": True}, "mine.count must be a whole number, got True"),
        ({"count": None}, "mine.count must be a whole number, got None"),
        ({"share": "0.5"}, "mine.share must be a number, got '0.5'"),
        ({"rate": math.nan}, "mine.rate must be a number, got nan"),
        ({"kind": "d"}, "mine.kind must be a, b or c, got 'd'"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(settings: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        Settings(**settings)


def test_class_whose_declarations_python_cannot_read_is_checked_as_far_as_it_can() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(Settings):
        price: Decimal | None = None

    assert Mine(price=None).price is None
    with pytest.raises(ConfigError, match=r"mine\.count must be a whole number"):
        Mine(count=2.0)  # type: ignore[arg-type]
