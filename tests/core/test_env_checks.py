"""What a custom batch returns is refused, converted or passed on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.core.env import BoxSpec, EnvSpec, EnvStep, PackedSpec
from asyncrl.core.env_checks import checked, shown
from asyncrl.core.errors import ActorFailed, EnvironmentFault
from asyncrl.core.types import Array
from asyncrl.learner.stop_conditions import MaxSeconds
from tests.faults.worlds import DEADLINE_S
from tests.integration.test_train_async import config, run
from tests.support.fakes import COUNTING_SPEC, CountingBatch

ACTION = np.array([4, 7])
NAN, INF = np.nan, np.inf


class Spoiling(CountingBatch):
    """Replaces fields of one of its steps by given values; step 0 is the reset."""

    def __init__(self, at_step: int = 2, **spoiled: Any) -> None:
        super().__init__(length=2)
        self._left = at_step
        self._spoiled: Mapping[str, Any] = spoiled

    def reset(self, seed: int) -> Array:
        obs = super().reset(seed)
        return obs if self._left else self._spoiled["obs"]

    def step(self, action: Array) -> EnvStep:
        out = super().step(action)
        self._left -= 1
        return out if self._left else out._replace(**self._spoiled)


def step_of(env: Spoiling) -> EnvStep:
    """Return the step in which a batch goes wrong, if it is let through."""
    batch = checked(env)
    batch.reset(0)
    batch.step(ACTION)
    return batch.step(ACTION)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.fault("F8")
@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("obs", [[0, 1], [NAN, 1]], "environment 1 of 2 (Spoiling) gave the observations [nan, 1"),
        ("reward", [NAN, 0], "environment 0 of 2 (Spoiling) gave the rewards nan, of which 1 of 1"),
        ("score", [0, INF], "environment 1 of 2 (Spoiling) gave the scores inf"),
    ],
)
def test_numbers_that_are_not_finite_are_refused_with_their_place(
    field: str, value: Any, words: str
) -> None:
    with pytest.raises(EnvironmentFault) as refused:
        step_of(Spoiling(**{field: np.array(value)}))
    assert words in str(refused.value)
    assert f"after action {ACTION[int(words[12])]}. " in str(refused.value)


@pytest.mark.fault("F8")
@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("obs", np.zeros((2, 3), np.float32), "observations of shape (2, 3) and dtype float32"),
        ("obs", [[1], [2, 3]], "dtype object"),
        ("reward", 1.0, "rewards of shape () and dtype float64"),
        ("terminated", np.array([0, 1]), "flags `terminated` of shape (2,) and dtype int64"),
        ("info", {"success": np.zeros(3, np.float32)}, "gave info 'success' of shape (3,)"),
        ("info", np.zeros(2, np.float32), "gave info of type ndarray"),
    ],
)
def test_arrays_of_another_kind_are_refused(field: str, value: Any, words: str) -> None:
    with pytest.raises(EnvironmentFault) as refused:
        step_of(Spoiling(**{field: value}))
    assert words in str(refused.value)
    assert "Spoiling gave" in str(refused.value)


class Frames(CountingBatch):
    """Says that it gives bytes, and gives larger numbers."""

    def __init__(self, value: int) -> None:
        super().__init__()
        box = BoxSpec((1,), "uint8", np.array([0]), np.array([255]))
        self.spec = EnvSpec(box, COUNTING_SPEC.action)
        self._value = value

    def reset(self, seed: int) -> Array:
        return np.array([[0], [self._value]], np.uint16)


@pytest.mark.fault("F8")
def test_whole_numbers_that_the_specs_dtype_has_no_room_for_are_refused() -> None:
    assert checked(Frames(255)).reset(0).tolist() == [[0], [255]]
    with pytest.raises(EnvironmentFault) as refused:
        checked(Frames(300)).reset(0)
    assert "Frames gave first observations from 0 to 300" in str(refused.value)


@pytest.mark.fault("F8")
def test_what_is_none_of_the_choices_is_refused() -> None:
    env = CountingBatch()
    choices = BoxSpec((2,), "float32", np.array([0, 0]), np.array([1, 2]), categorical=True)
    env.spec = EnvSpec(choices, COUNTING_SPEC.action)
    batch = checked(env)
    batch.reset(0)
    batch.step(ACTION)
    batch.step(ACTION)
    said = (
        r"environment 0 of 2 \(CountingBatch\) gave the last observations \[0.0, 3.0\] after action"
    )
    with pytest.raises(EnvironmentFault, match=said):
        batch.step(ACTION)


@pytest.mark.fault("F8")
def test_step_that_is_none_is_refused() -> None:
    class Tuples(CountingBatch):
        def step(self, action: Array) -> Any:
            return tuple(super().step(action))

    with pytest.raises(EnvironmentFault, match=r"step of Tuples returned .* return an `EnvStep`"):
        checked(Tuples()).step(ACTION)


@pytest.mark.fault("F8")
def test_fields_of_packed_observations_are_checked_by_name() -> None:
    def box(*shape: int) -> BoxSpec:
        return BoxSpec(shape, "float32", np.full(shape, -INF), np.full(shape, INF))

    count = BoxSpec((), "int64", np.array(0), np.array(9))
    kind = BoxSpec((), "int64", np.array(1), np.array(2), categorical=True)
    fields = ("near", box(2)), ("count", count), ("far", box()), ("kind", kind)
    packed = PackedSpec(fields)

    class Packed(CountingBatch):
        far = np.zeros(2, np.float32)
        kind = np.array([1, 2])

        def reset(self, seed: int) -> Array:
            near, counted = np.ones((2, 2), np.float32), np.full(2, -1)
            fields = {"near": near, "count": counted, "far": self.far, "kind": self.kind}
            return packed.pack(fields)

    env = Packed()
    env.spec = EnvSpec(packed, COUNTING_SPEC.action)
    assert checked(env).reset(0).shape == (2, packed.row_bytes)
    env.far = np.array([0, NAN], np.float32)
    with pytest.raises(EnvironmentFault, match=r"environment 1 .* field 'far' of the first obs"):
        checked(env).reset(0)
    env.far, env.kind = np.zeros(2, np.float32), np.array([0, 1])
    with pytest.raises(EnvironmentFault, match=r"environment 0 .* field 'kind' of .* 0 after res"):
        checked(env).reset(0)


# --- what is passed on ---------------------------------------------------------------------------


def test_what_fits_is_passed_on_unchanged() -> None:
    """Rewards and flags are copied, since some environments use their arrays again."""

    class Kept(CountingBatch):
        last: EnvStep

        def step(self, action: Array) -> EnvStep:
            self.last = super().step(action)
            return self.last

    env = Kept(length=2)
    batch = checked(env)
    assert (batch.spec, batch.n_envs) == (env.spec, env.n_envs)
    batch.reset(0)
    for _ in range(4):
        out = batch.step(ACTION)
        np.testing.assert_equal(out, env.last)
        assert out.obs is env.last.obs, "observations may be large"
        assert out.final_obs is env.last.final_obs
        for ours, theirs in zip(out[1:4], env.last[1:4], strict=True):
            assert not np.shares_memory(ours, theirs)
        assert (out.obs is out.final_obs) == (env.last.obs is env.last.final_obs)
    batch.close()
    assert env.closed


def test_numbers_of_the_same_kind_are_converted() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        obs = np.array([[0.5, 1.0], [2.0, 3.0]])
        out = step_of(Spoiling(obs=obs, reward=[1, 2], terminated=[False, True]))
    assert (out.obs.dtype, out.obs.tolist()) == (np.float32, obs.tolist())
    assert (out.reward.dtype, out.reward.tolist()) == (np.float32, [1.0, 2.0])
    assert (out.terminated.dtype, out.terminated.tolist()) == (np.bool_, [False, True])


# --- whole runs ----------------------------------------------------------------------------------


class SpoiledOnce(CountingBatch):
    """Gives a NaN in its hundredth step, each time that it is made."""

    def __init__(self) -> None:
        super().__init__()
        self._left = 100

    def step(self, action: Array) -> EnvStep:
        out = super().step(action)
        self._left -= 1
        return out if self._left else out._replace(obs=np.full_like(out.obs, NAN))


@pytest.mark.processes
@pytest.mark.fault("F8")
@pytest.mark.parametrize(
    ("where", "words"), [("make_env", "SpoiledOnce"), ("make_eval_env", "the evaluator failed")]
)
def test_environment_of_the_users_own_that_gives_nan_ends_the_run(where: str, words: str) -> None:
    with pytest.raises(ActorFailed, match=rf"{words}.* gave the observations .* NaN or inf"):
        run(config(launcher="thread"), **{where: SpoiledOnce}, stop=MaxSeconds(DEADLINE_S))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32(0.5), "0.5"),
        (None, "None"),
        ([[1], [2, 3]], "[[1], [2, 3]]"),
        (np.arange(84), "[0, 1, 2, 3, 4, 5, 6, 7, ...] (84 values from 0 to 83)"),
        (torch.ones(3, requires_grad=True), "[1.0, 1.0, 1.0]"),
        (torch.ones(2, dtype=torch.bfloat16), "tensor([1., 1.], dtype=torch.bfloat16)"),
        ({"key": "x\n" * 500}, None),
        (np.array(["x" * 500, "y"]), None),
    ],
)
def test_values_are_shown_in_one_short_line(value: Any, text: str | None) -> None:
    line = shown(value)
    assert line == (text or line)
    assert "\n" not in line
    assert len(line) <= 200
