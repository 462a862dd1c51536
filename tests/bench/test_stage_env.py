"""Stage `env`: batch and bare environments, in one process."""

from __future__ import annotations

import pytest

from asyncrl.bench.load import Load
from asyncrl.bench.stage_env import env_stage
from tests.bench.workloads import tiny

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("env", "vectorization"), [("CartPole-v1", "native"), ("Pendulum-v1", "batch")]
)
def test_value_and_limit_are_measured(env: str, vectorization: str) -> None:
    stage = env_stage(Load.of(tiny(env=env, vectorization=vectorization)))
    (quantity,) = stage.quantities
    assert (quantity.stage, quantity.unit, quantity.frame_skip) == ("env", "agent steps/s", 1)
    assert quantity.settings == {
        "env_kwargs": {},
        "vectorization": vectorization,
        "envs_per_actor": 4,
    }
    (value,), (limit,) = stage.value(), stage.limit()
    assert value > 0
    assert limit > 0
    stage.close()
