"""Stage `train`: learner and actors at once, and each of them alone."""

from __future__ import annotations

import pytest

from asyncrl.bench.load import Load
from asyncrl.bench.stage_runs import train_stage
from asyncrl.core.errors import ActorFailed
from tests.bench.workloads import make_failing, tiny

pytestmark = pytest.mark.processes


def test_both_sides_are_measured_with_their_limits() -> None:
    stage = train_stage(Load.of(tiny()))
    learner, actors = stage.quantities
    assert (learner.unit, learner.limit_is) == ("opt steps/s", "learner alone")
    assert (actors.unit, actors.limit_is) == ("agent steps/s", "actors alone")
    assert learner.settings == actors.settings
    for measure in (stage.value, stage.limit):
        opt_steps_per_s, env_steps_per_s = measure()
        assert 1 < opt_steps_per_s < 1e6
        assert 100 < env_steps_per_s < 1e8
    stage.close()


def test_actor_that_fails_fails_the_measurement() -> None:
    env = f"{make_failing.__module__}:{make_failing.__name__}"
    stage = train_stage(Load.of(tiny(env=env)))
    with pytest.raises(ActorFailed, match="the robot fell off the table"):
        stage.value()
    stage.close()
