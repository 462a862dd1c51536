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


def test_each_name_makes_its_own_stage_and_all_makes_every_one() -> None:
    assert tuple(STAGES) == get_args(StageName)
    made = names_of("all")
    assert len(made) == len(set(made))
    assert list(dict.fromkeys(name.split()[0] for name in made)) == list(STAGES)
    for name in STAGES:
        assert names_of(name) == [found for found in made if found.startswith(f"{name} ")]


def test_a_measurement_is_made_when_its_turn_has_come() -> None:
    stages = make_stages("all", tiny(env="Nope-v0"))  # no error yet
    with pytest.raises(ConfigError, match="Nope-v0"):
        next(stages)
