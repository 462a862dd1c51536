"""Stage `sample`: its frames, its network, and its failures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asyncrl.core.errors import ActorFailed, AsyncRLError
from asyncrl.tools.bench.load import Load
from asyncrl.tools.bench.stage_runs import sample_stage
from tests.tools.bench.workloads import OnlyFastConfig, make_failing, tiny

pytestmark = pytest.mark.processes

FAILING = f"{make_failing.__module__}:{make_failing.__name__}"


def test_single_frames_are_sent_of_stacks_and_the_result_says_so() -> None:
    pytest.importorskip("ale_py")
    stage = sample_stage(Load.of(tiny(env="ALE/Pong-v5", envs_per_actor=1, capacity=100)))
    assert stage.quantities[0].settings["frame_stack"] == 4
    (value,) = stage.value()
    assert value > 0


def test_the_bare_loop_computes_the_network_as_actors_do() -> None:
    (limit,) = sample_stage(replace(Load.of(tiny()), agent=OnlyFastConfig())).limit()
    assert limit > 0


def test_environment_that_fails_in_the_bare_loop_is_reported_with_its_error() -> None:
    stage = sample_stage(Load.of(tiny(env=FAILING)))
    with pytest.raises(AsyncRLError, match="bare loop failed: RuntimeError: the robot fell") as e:
        stage.limit()
    assert "in step" in str(e.value)


def test_environment_that_fails_in_an_actor_fails_the_measurement() -> None:
    stage = sample_stage(Load.of(tiny(env=FAILING)))
    with pytest.raises(ActorFailed, match="actor 0 failed: RuntimeError: the robot fell off"):
        stage.value()
