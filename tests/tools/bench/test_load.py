"""What is put through the stages: the agent that fits, and a replay that fits into memory."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.core.errors import ActorFailed, ConfigError
from asyncrl.core.segment import END
from asyncrl.tools.bench import load as load_module
from asyncrl.tools.bench.load import Load, synthetic_experience
from tests.tools.bench.workloads import tiny

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cartpole() -> Load:
    return Load.of(tiny())


@pytest.fixture(scope="module")
def pendulum() -> Load:
    return Load.of(tiny(env="Pendulum-v1"))


def test_discrete_actions_are_dqns_and_others_sacs(cartpole: Load, pendulum: Load) -> None:
    assert isinstance(cartpole.agent, DQNConfig)
    assert isinstance(pendulum.agent, SACConfig)
    assert pendulum.agent.random_env_steps == 0, "it is the policy whose speed is asked for"
    assert pendulum.agent.hidden == (8,)


def test_constructor_that_ends_its_process_does_not_end_the_bench() -> None:
    odd = {
        "env": "benchmarks.misbehaving_env:MisbehavingEnv",
        "env_kwargs": {"do": "exit-0", "at": "make"},
    }
    with pytest.raises(ActorFailed, match="building the environment failed: its process exited"):
        Load.of(tiny(**odd))


def test_rows_hold_the_newest_frame_where_the_environment_stacks_frames() -> None:
    pytest.importorskip("ale_py")
    pong = {"env": "ALE/Pong-v5", "envs_per_actor": 1, "capacity": 100}
    for changes, frames in [({"env_kwargs": {"frame_stack": 2}}, 2), ({"frame_stack": 1}, 1)]:
        load = Load.of(tiny(**pong, **changes))
        assert load.frame_stack == load.schema.frame_stack == frames
        assert load.async_config().segment.frame_stack == frames
        (row,) = (column for column in load.schema.columns if column.name == "obs")
        assert row.shape == ((84, 84) if frames > 1 else load.spec.observation.shape)


def test_observations_that_are_no_stacks_are_kept_whole(cartpole: Load) -> None:
    assert cartpole.frame_stack == cartpole.schema.frame_stack == 1
    with pytest.raises(ConfigError, match="frame_stack=4 needs observations of 4 frames"):
        Load.of(tiny(frame_stack=4))


def test_replay_is_as_large_as_memory_holds_it_twice(
    cartpole: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    row_bytes = cartpole.schema.segment_bytes / 8
    available = 2 * 700 * row_bytes / load_module._MEMORY_SHARE
    memory = SimpleNamespace(virtual_memory=lambda: SimpleNamespace(available=available))
    monkeypatch.setattr(load_module, "psutil", memory)
    assert Load.of(tiny(capacity=700)).capacity == 700
    assert Load.of(tiny(capacity=701)).capacity == 500


def test_made_up_experience_is_whole_segments_within_the_spaces(
    cartpole: Load, pendulum: Load
) -> None:
    assert set(synthetic_experience(cartpole.schema, cartpole.spec, 5)["action"].flat) == {0, 1}
    load = pendulum
    columns = synthetic_experience(load.schema, load.spec, 5)
    assert {name: column.shape[:2] for name, column in columns.items()} == dict.fromkeys(
        columns, (5, load.schema.rows)
    )
    assert {c.name: c.dtype for c in load.schema.columns} == {
        name: column.dtype.name for name, column in columns.items()
    }
    assert not (columns["flags"] & END).any()
    assert 1 < np.abs(columns["action"]).max() <= 2, "of all of the space"
    assert columns["obs"].std() > 0.5, "all zeros would be quicker to learn from than anything"
