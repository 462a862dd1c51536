"""The stages by name, and what each of them measures."""

from __future__ import annotations

from contextlib import closing

import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.tools.bench.stages import STAGES, make_stages
from tests.tools.bench.workloads import tiny


@pytest.mark.processes
def test_each_name_makes_its_own_stage_which_measures_values_and_limits() -> None:
    workload = tiny(env="Pendulum-v1", vectorization="batch", device="cpu", actors=2)
    limits: dict[str, str] = {}
    for name in STAGES:
        for stage in make_stages(name, workload):
            with closing(stage):
                rates = zip(stage.quantities, stage.value(), stage.limit(), strict=True)
                for quantity, value, limit in rates:
                    assert (quantity.stage, quantity.env) == (name, "Pendulum-v1")
                    assert min(value, limit) > 0
                    assert quantity.settings.get("agent", "SAC") == "SAC"
                    limits[f"{name} {quantity.case}: {quantity.unit}"] = quantity.limit_is
    assert limits == {
        "env : agent steps/s": "bare loop over the envs",
        "sample : agent steps/s": "bare loop, 2 processes",
        "sample inference server: agent steps/s": "bare loop, 2 processes",
        "learner : opt steps/s": "one fixed batch",
        "learner update: opt steps/s": "its matrix products alone",
        "train learner: opt steps/s": "learner alone",
        "train actors: agent steps/s": "actors alone",
    }


def test_a_measurement_is_made_when_its_turn_has_come() -> None:
    stages = make_stages("all", tiny(env="Nope-v0"))  # no error yet
    with pytest.raises(ConfigError, match="Nope-v0"):
        next(stages)
