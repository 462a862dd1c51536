"""Vector environments as batches: what they say of themselves is believed, and checked."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from asyncrl.core.env import PackedSpec
from asyncrl.core.errors import ConfigError, EnvironmentFault
from asyncrl.envs.vector import VectorBatch
from tests.support.fake_envs import (
    NESTED_SPACE,
    OBS_SPACE,
    TERMINATING,
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
            r"ScriptedVector .* shape \(3, 5\) .* action \[0, 0, 0\]; .* \(3, 4\), float32",
        ),
        ({"obs": [[1.0], [2.0, 3.0]]}, r"shape \(2,\) and dtype object"),
        (
            {"obs": np.array([[0] * 4, [0] * 4, [0, math.inf, 0, 0]], np.float32)},
            r"environment 2 of 3 \(ScriptedVector\) gave the observation \[0.0, inf, 0.0, 0.0\]",
        ),
        ({"reward": np.array([0, math.nan, 0])}, "environment 1 of 3 .* gave the reward nan"),
        ({"reward": 1.0}, "must be one number each, got 1.0"),
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
        (
            {"drawn": np.array([0, math.nan, 0], np.float32)},
            "environment 1 of 3 .* gave the field 'drawn' of the observation nan",
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
def test_error_of_an_environment_comes_through_with_the_actions(mode: AutoresetMode) -> None:
    error = RuntimeError("the physics exploded")
    batch = sync(mode, partial(BrokenEnv, 1, error=error))
    batch.reset(0)
    batch.step(NOTHING)
    with pytest.raises(RuntimeError, match="exploded") as caught:
        batch.step(np.array([4, 3, 2]))
    assert caught.value is error
    assert caught.value.__notes__ == ["asyncrl: in step of SyncVectorEnv, actions [4, 3, 2]"]
