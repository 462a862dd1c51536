"""Stage `train`: learner and actors at once, and each of them alone."""

from __future__ import annotations

import pytest

from asyncrl.bench.load import Load
from asyncrl.bench.stage_runs import train_stage
from tests.bench.workloads import tiny

pytestmark = pytest.mark.processes


def test_both_sides_are_measured_with_their_limits() -> None:
    stage = train_stage(Load.of(tiny()))
    learner, actors = stage.quantities
    assert (learner.unit, learner.limit_is) == ("opt steps/s", "learner alone")
    assert (actors.unit, actors.limit_is) == ("agent steps/s", "actors alone")
    assert learner.settings == actors.settings
    for measure in (stage.value, stage.limit):
        opt_steps_per_s, env_steps_per_s = measure()
        assert opt_steps_per_s > 0
        assert env_steps_per_s > 0
    stage.close()
