"""Vector environments as batches: what they say of themselves is believed, and checked."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from asyncrl.core.env import PackedSpec
from asyncrl.core.errors import ConfigError, EnvironmentFault
from asyncrl.envs.vector import VectorBatch
from tests.support.fake_envs import (
    NESTED_SPACE,
    OBS_SPACE,
    TERMINATING,
    ActedEnv,
    BrokenEnv,
    tell_nested,
    telling_makers,
)

NOTHING = np.zeros(3, np.int64)


class ScriptedVector(VectorEnv[Any, Any, Any]):
    """Three environments that answer every step alike, except for what a test sets."""

    def __init__(self, **answer: Any) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = 3
        self.single_observation_space = OBS_SPACE
        self.single_action_space = Discrete(5)
        self.observation_space = batch_space(OBS_SPACE, 3)
        self.action_space = batch_space(self.single_action_space, 3)
        self.answer = {
            "obs": np.zeros((3, 4), np.float32),
            "reward": np.ones(3),
            "terminated": np.zeros(3, bool),
            "truncated": np.zeros(3, bool),
            "infos": {},
        } | answer
        self.closed_times = 0

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros((3, 4), np.float32), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        answer = self.answer
        keys = ("obs", "reward", "terminated", "truncated", "infos")
        return tuple(answer[key] for key in keys)  # type: ignore[return-value]

    def close(self, **_: Any) -> None:
        self.closed_times += 1


def ended(*final_obs: Any) -> dict[str, Any]:
    """Return the answer of a step that ends the second one's episode with these observations."""
    infos: dict[str, Any] = {}
    if final_obs:
        infos["final_obs"] = np.array([None] * 3, object)
        infos["final_obs"][: len(final_obs)] = final_obs
    return {"terminated": np.array([False, True, False]), "infos": infos}


def step_of(**answer: Any) -> Any:
    batch = VectorBatch(ScriptedVector(**answer))
    batch.reset(0)
    return batch.step(NOTHING)


def sync(mode: AutoresetMode, second: Any) -> VectorBatch:
    """Return a batch whose second environment is made by `second`."""
    makers = telling_makers([TERMINATING] * 3)
    makers[1] = second
    return VectorBatch(SyncVectorEnv(makers, autoreset_mode=mode))


def step_from_reset(batch: VectorBatch, n_steps: int) -> None:
    batch.reset(0)
    for _ in range(n_steps):
        batch.step(NOTHING)


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, "SameStep"])
def test_mode_is_taken_from_the_metadata_through_wrappers(mode: Any) -> None:
    env = ScriptedVector()
    env.metadata = {"autoreset_mode": mode}
    assert VectorBatch(VectorWrapper(env))._mode is AutoresetMode(mode)


@pytest.mark.parametrize("metadata", [{}, None, {"autoreset_mode": "sometimes"}])
def test_environment_that_does_not_report_its_mode_is_refused(metadata: Any) -> None:
    env = ScriptedVector()
    env.metadata = metadata
    said = "sometimes" if metadata else "None"
    with pytest.raises(ConfigError, match=rf'metadata\["autoreset_mode"\] is \'?{said}.*NEXT_STEP'):
        VectorBatch(env)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ended(), r'SAME_STEP.*without infos\["final_obs"\]'),
        (ended(np.zeros(4), None), r'SAME_STEP.*without infos\["final_obs"\]'),
        (ended(None, np.zeros(3)), r"environment 1 of 3 .* shape \(3,\)"),
        (ended(None, np.full(4, np.nan)), "environment 1 of 3 .*last observation of.*nan"),
        (
            {"obs": np.zeros((3, 5), np.float32)},
            r"ScriptedVector gave observations of shape \(3, 5\) and dtype float32 after action "
            r"\[0, 0, 0\]; its observation space declares \(3, 4\), float32",
        ),
        ({"obs": np.zeros((3, 4), complex)}, "dtype complex128"),
        ({"obs": [[1.0], [2.0, 3.0]]}, r"shape \(2,\) and dtype object"),
        (
            {"obs": np.array([[0] * 4, [0] * 4, [0, math.inf, 0, 0]], np.float32)},
            r"environment 2 of 3 \(ScriptedVector\) gave the observation \[0.0, inf, 0.0, 0.0\]",
        ),
        ({"reward": np.array([0, math.nan, 0])}, "environment 1 of 3 .* gave the reward nan"),
        ({"reward": 1.0}, "must be one number each, got 1.0"),
        ({"terminated": np.zeros(2, bool)}, r"`terminated` of shape \(2,\).*\(3,\)"),
        ({"truncated": False}, r"`truncated` of shape \(\).*\(3,\)"),
    ],
)
def test_broken_promises_are_reported_with_value_and_action(
    answer: dict[str, Any], message: str
) -> None:
    with pytest.raises(EnvironmentFault, match=message):
        step_of(**answer)


class ScriptedNested(ScriptedVector):
    """A scripted environment whose observations are batches of nested ones."""

    def __init__(self, **answer: Any) -> None:
        super().__init__(**{"obs": nested_obs()} | answer)
        self.single_observation_space = NESTED_SPACE
        self.observation_space = batch_space(NESTED_SPACE, 3)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return nested_obs(), {}


def nested_obs(**changes: Any) -> dict[str, Any]:
    at = np.zeros((3, 1), np.uint8), np.arange(3.0).reshape(3, 1, 1)
    return {"who": np.arange(3), "at": at, "drawn": np.zeros(3, np.float32)} | changes


def nested_step_of(**answer: Any) -> Any:
    batch = VectorBatch(ScriptedNested(**answer))
    batch.reset(0)
    out = batch.step(NOTHING)
    assert isinstance(batch.spec.observation, PackedSpec)
    return [tell_nested(batch.spec.observation, obs).tolist() for obs in (out.obs, out.final_obs)]


def test_nested_final_observations_may_come_as_objects_or_as_batches_of_fields() -> None:
    last = nested_obs(drawn=np.full(3, 0.5, np.float32))
    objects = np.array([None] * 3, object)
    for i in (1, 2):
        objects[i] = {
            "who": i,
            "at": (last["at"][0][i], last["at"][1][i]),
            "drawn": last["drawn"][i],
        }
    for rows in (objects, last):
        obs, final_obs = nested_step_of(
            terminated=np.array([False, True, True]), infos={"final_obs": rows}
        )
        assert obs == [[0, 0, 0, 0], [1, 0, 1, 0], [2, 0, 2, 0]]
        assert final_obs == [[0, 0, 0, 0], [1, 0, 1, 0.5], [2, 0, 2, 0.5]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"at": (np.full((3, 1), 256, np.uint16), np.zeros((3, 1, 1)))},
            r"field 'at/0' of shape \(3, 1\) and dtype uint16.* declares \(3, 1\), uint8",
        ),
        ({"who": np.array([0, 100, 2])}, "environment 1 of 3 .* 100 .* choices from 0 to 99"),
        (
            {"drawn": np.array([0, math.nan, 0], np.float32)},
            "environment 1 of 3 .* gave the field 'drawn' of the observation nan",
        ),
        (
            {"drawn": np.zeros((3, 1))},
            r"ScriptedNested gave observations with field 'drawn' of shape \(3, 1\) and dtype "
            r"float64 after action \[0, 0, 0\]; its observation space declares \(3,\), float32",
        ),
        (
            {"at": np.zeros((2, 3, 1))},
            "ScriptedNested gave observations not built as .*'at' must be a tuple of 2, got a nda",
        ),
        ({"more": np.zeros(3)}, r"must be a dict with the keys .* 'more'\]"),
    ],
)
def test_broken_promises_name_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvironmentFault, match=message):
        nested_step_of(obs=nested_obs(**changes))


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("at_step", [0, 3])
def test_nan_is_found_wherever_it_comes_from(mode: AutoresetMode, at_step: int) -> None:
    """Step 3 is the last one of an episode, and step 0 the first of all."""
    batch = sync(mode, partial(BrokenEnv, 1, at_step=at_step, obs=np.full(4, np.nan, np.float32)))
    with pytest.raises(EnvironmentFault, match="environment 1 of 3"):
        step_from_reset(batch, 3)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_error_of_an_environment_comes_through_with_the_actions(mode: AutoresetMode) -> None:
    error = RuntimeError("the physics exploded")
    batch = sync(mode, partial(BrokenEnv, 1, error=error))
    batch.reset(0)
    batch.step(NOTHING)
    with pytest.raises(RuntimeError, match="exploded") as caught:
        batch.step(np.array([4, 3, 2]))
    assert caught.value is error
    assert caught.value.__notes__ == ["asyncrl: in step of SyncVectorEnv, actions [4, 3, 2]"]


def test_rewards_and_flags_of_a_mere_reset_do_not_count() -> None:
    env = ScriptedVector(terminated=np.array([False, True, False]), reward=np.array([1, 2, 3]))
    env.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    batch = VectorBatch(env)
    batch.reset(0)
    assert batch.step(NOTHING).stepped is None
    env.answer["reward"] = np.array([1, math.nan, 3])
    out = batch.step(NOTHING)
    assert out.stepped is not None
    assert out.stepped.tolist() == [True, False, True]
    assert out.reward.tolist() == [1, 0, 3]
    assert not out.terminated.any()
    env.answer["reward"] = np.array([1, 2, 3])
    assert batch.step(NOTHING).stepped is None, "that it said it ended while resetting is ignored"


def test_partial_reset_changes_no_other_environment() -> None:
    """What a reset gives for environments that were not to be reset may be anything finite."""
    now = np.arange(12, dtype=np.float32).reshape(3, 4)
    env = ScriptedVector(obs=now, terminated=np.array([False, True, False]))
    env.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
    batch = VectorBatch(env)
    batch.reset(0)
    out = batch.step(NOTHING)
    np.testing.assert_array_equal(out.obs, [now[0], [0] * 4, now[2]])
    np.testing.assert_array_equal(out.final_obs, now)


def test_actions_are_converted_for_the_space() -> None:
    env = SyncVectorEnv([lambda: ActedEnv(Box(-1, 1, (2,), np.float64))] * 2)
    batch = VectorBatch(env)
    batch.reset(0)
    action = np.array([[0, 1], [-1, 0.5]], np.float32)
    before = action.copy()
    batch.step(action)
    np.testing.assert_array_equal(action, before, "environments write into a copy")
    for one, right in zip(env.envs, before, strict=True):
        assert one.acted[0].dtype == np.float64  # type: ignore[attr-defined]
        np.testing.assert_array_equal(one.acted[0], right)  # type: ignore[attr-defined]
