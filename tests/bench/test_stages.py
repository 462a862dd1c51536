"""The stages by name."""

from __future__ import annotations

from contextlib import closing
from typing import Literal, get_args

import pytest

from asyncrl.bench.stages import STAGES, make_stages
from asyncrl.bench.workload import StageName
from asyncrl.core.errors import ConfigError
from tests.bench.workloads import tiny


def names_of(name: StageName | Literal["all"]) -> list[str]:
    found = []
    for stage in make_stages(name, tiny()):
        with closing(stage):
            found += [f"{q.stage} {q.case} {q.env}" for q in stage.quantities]
    return found


def test_each_name_makes_its_own_stage() -> None:
    for name in STAGES:
        made = names_of(name)
        assert made
        assert all(found.startswith(f"{name} ") for found in made)


def test_every_name_has_a_stage() -> None:
    assert tuple(STAGES) == get_args(StageName)


def test_all_makes_every_stage_once() -> None:
    made = names_of("all")
    assert made == [found for name in STAGES for found in names_of(name)]
    assert len(made) == len(set(made))


def test_a_measurement_is_made_when_its_turn_has_come() -> None:
    stages = make_stages("all", tiny(env="Nope-v0"))  # no error yet
    with pytest.raises(ConfigError, match="Nope-v0"):
        next(stages)
