"""Stage `env`: batch and bare environments, in one process."""

from __future__ import annotations

import pytest

from asyncrl.bench.load import Load
from asyncrl.bench.stage_env import env_stage
from tests.bench.workloads import tiny

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("vectorization", ["batch", "native"])
def test_value_and_limit_are_measured(vectorization: str) -> None:
    stage = env_stage(Load.of(tiny(vectorization=vectorization)))
    (quantity,) = stage.quantities
    assert (quantity.stage, quantity.unit, quantity.frame_skip) == ("env", "agent steps/s", 1)
    assert quantity.settings == {
        "env_kwargs": {},
        "vectorization": vectorization,
        "envs_per_actor": 4,
    }
    (value,), (limit,) = stage.value(), stage.limit()
    # Any machine steps CartPole more often than this, and none that often in Python.
    assert 100 < value < 1e8
    assert 100 < limit < 1e8
    stage.close()


def test_continuous_actions_are_measured() -> None:
    stage = env_stage(Load.of(tiny(env="Pendulum-v1")))
    assert stage.value()[0] > 0
    assert stage.limit()[0] > 0
