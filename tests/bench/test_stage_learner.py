"""Stage `learner`: sampling and learning, and learning alone."""

from __future__ import annotations

import pytest

from asyncrl.bench.load import Load
from asyncrl.bench.stage_learner import learner_stage, update_stage
from tests.bench.workloads import tiny

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(("env", "agent"), [("CartPole-v1", "DQN"), ("Pendulum-v1", "SAC")])
def test_value_and_limit_are_measured(env: str, agent: str) -> None:
    load = Load.of(tiny(env=env, device="cpu"))
    stages = [learner_stage(load), update_stage(load)]
    (quantity,), (update,) = (stage.quantities for stage in stages)
    assert (quantity.stage, quantity.case, quantity.unit) == ("learner", "", "opt steps/s")
    assert (update.stage, update.case, update.unit) == ("learner", "update", "opt steps/s")
    assert quantity.settings == {
        "env_kwargs": {},
        "agent": agent,
        "hidden": [8],
        "device": "cpu",
        "threads": 1,
        "batch_size": 16,
        "frame_stack": 1,
        "batches_per_draw": 32,
        "capacity": 2000,
    }
    assert update.settings == quantity.settings
    for stage in stages:
        assert stage.value()[0] > 0
        assert stage.limit()[0] > 0
        stage.close()
        stage.close()
