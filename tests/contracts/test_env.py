"""What holds for every batch of environments: whose step was it, where did it lead, how it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.env import BatchEnv, EnvStep, PackedSpec
from asyncrl.core.types import Array, BoolArray
from asyncrl.envs.batch import PlainBatch
from asyncrl.envs.spaces import spec_from_spaces
from asyncrl.envs.vector import VectorBatch
from tests.support.fake_envs import (
    NESTED_SPACE,
    TERMINATING,
    TRUNCATING,
    Plan,
    nested_makers,
    tell_nested,
    telling_makers,
)

Makers = Callable[..., list[Callable[[], gym.Env[Any, Any]]]]

N_ENVS = 3
N_STEPS = 40


@dataclass(frozen=True)
class Case:
    """An implementation, and what is known of its observations."""

    make: Callable[[str], BatchEnv]
    """Given "T" or "C", makes a batch whose episodes all end that way."""

    follows: Callable[[Array, Array], BoolArray]
    """Whether the second observations are the successors of the first."""

    is_first: Callable[[Array], BoolArray]
    """Whether these are first observations of an episode."""


def _plans(end: str) -> list[Plan]:
    # Lengths differ, so that episodes end one by one and together.
    return [[(1 + i, end), (4, end)] for i in range(N_ENVS)]


def _plain(plans: list[Plan], makers: Makers = telling_makers) -> PlainBatch:
    return PlainBatch(makers(plans, reuse=True), len(plans))


def _vector(plans: list[Plan], mode: AutoresetMode, makers: Makers = telling_makers) -> VectorBatch:
    """Return a batch that copies nothing; those that reset at once read what they reset."""
    made = makers(plans, reuse=mode is not AutoresetMode.SAME_STEP)
    return VectorBatch(SyncVectorEnv(made, copy=False, autoreset_mode=mode))


def _one_step_on(before: Array, after: Array) -> BoolArray:
    return (after == before + np.array([0, 0, 1, 0], np.float32)).all(axis=1)


def _at_step_0(obs: Array) -> BoolArray:
    return obs[:, 2] == 0


BATCHES: dict[str, Callable[[list[Plan]], BatchEnv]] = {
    "plain": _plain,
    "nested plain": partial(_plain, makers=nested_makers),
    **{mode.name: partial(_vector, mode=mode) for mode in AutoresetMode},
    **{
        f"nested {mode.name}": partial(_vector, mode=mode, makers=nested_makers)
        for mode in AutoresetMode
    },
}
NESTED_SPEC = spec_from_spaces(NESTED_SPACE, Discrete(5)).observation
assert isinstance(NESTED_SPEC, PackedSpec)


def _cart_pole() -> Case:
    def make(end: str) -> VectorBatch:
        # Pushed one way, poles fall within 12 steps.
        return VectorBatch(CartPoleVectorEnv(N_ENVS, max_episode_steps=6 if end == "C" else 100))

    def follows(before: Array, after: Array) -> BoolArray:
        # Cart and pole move by Euler's rule, 0.02 s a step.
        expected = before[:, [0, 2]] + np.float32(0.02) * before[:, [1, 3]]
        return np.isclose(after[:, [0, 2]], expected, rtol=0, atol=1e-6).all(axis=1)

    def is_first(obs: Array) -> BoolArray:
        return (np.abs(obs) <= 0.05).all(axis=1)

    return Case(make, follows, is_first)


CASES = {
    name: Case(lambda end, make=make: make(_plans(end)), _one_step_on, _at_step_0)  # type: ignore[misc]
    for name, make in BATCHES.items()
    if "nested" not in name
} | {"native CartPole": _cart_pole()}

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def did_step(out: EnvStep) -> BoolArray:
    return np.ones(len(out.reward), bool) if out.stepped is None else out.stepped


def run(
    env: BatchEnv, *, action: int = 1, n_steps: int = N_STEPS
) -> Iterator[tuple[Array, EnvStep]]:
    """Yield what each step started from, and what it led to."""
    obs = env.reset(0)
    for _ in range(n_steps):
        out = env.step(np.full(env.n_envs, action))
        yield obs, out
        obs = out.obs


@every_case
def test_arrays_are_as_the_spec_says(case: Case) -> None:
    env = case.make("T")
    assert env.n_envs == N_ENVS
    shape, dtype = (N_ENVS, *env.spec.observation.shape), env.spec.observation.dtype
    assert (env.reset(0).shape, env.reset(0).dtype) == (shape, dtype)
    for _, out in run(env):
        for obs in (out.obs, out.final_obs):
            assert (obs.shape, obs.dtype) == (shape, dtype)
        assert (out.reward.shape, out.reward.dtype) == ((N_ENVS,), np.float32)
        for flags in (out.terminated, out.truncated, did_step(out)):
            assert (flags.shape, flags.dtype) == ((N_ENVS,), np.bool_)


@pytest.mark.behaviour(number=51)
@pytest.mark.parametrize("end", ["T", "C"])
@every_case
def test_final_obs_is_the_true_successor_and_resets_come_right_after_ends_of_their_kind(
    case: Case, end: str
) -> None:
    terminated = truncated = 0
    fresh, ended = np.ones(N_ENVS, bool), np.zeros(N_ENVS, bool)
    for obs, out in run(case.make(end)):
        stepped, over = did_step(out), out.terminated | out.truncated
        assert case.follows(obs, out.final_obs)[stepped].all()
        assert case.is_first(obs)[fresh & stepped].all()
        goes_on, only_reset = stepped & ~over, ~stepped
        np.testing.assert_array_equal(out.obs[goes_on], out.final_obs[goes_on])
        assert not (only_reset & ~ended).any()
        assert not out.reward[only_reset].any()
        assert not over[only_reset].any()
        assert case.is_first(out.obs)[only_reset].all()
        fresh, ended = over | (fresh & only_reset), over
        terminated += int(out.terminated.sum())
        truncated += int(out.truncated.sum())
    assert (terminated if end == "T" else truncated) >= 2 * N_ENVS, "or nothing was tested"
    assert (truncated if end == "T" else terminated) == 0


@every_case
def test_arrays_are_the_callers_to_keep(case: Case) -> None:
    kept: list[Array] = []
    copies: list[Array] = []
    for _, out in run(case.make("T")):
        arrays = [array for array in out if array is not None]
        kept += arrays
        copies += [array.copy() for array in arrays]
    for array, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@every_case
def test_writing_into_what_came_back_changes_nothing(case: Case) -> None:
    env = case.make("T")
    action = np.ones(N_ENVS, np.int64)
    env.reset(0)[:] = 99
    for _, expected in run(case.make("T")):
        out = env.step(action)
        for array, right in zip(out, expected, strict=True):
            np.testing.assert_array_equal(array, right)
        assert (action == 1).all()
        for array in (out.obs, out.reward, out.terminated, out.truncated, out.final_obs):
            array[:] = 99
        if out.stepped is not None:
            out.stepped[:] = True


@every_case
def test_same_seed_repeats_everything(case: Case) -> None:
    env = case.make("T")
    first = [out for _, out in run(env)]
    again = [out for _, out in run(env)]
    other = [out for _, out in run(case.make("T"))]
    for out, *others in zip(first, again, other, strict=True):
        for repeated in others:
            for array, right in zip(repeated, out, strict=True):
                np.testing.assert_array_equal(array, right)


@every_case
def test_environments_and_seeds_and_episodes_draw_differently(case: Case) -> None:
    env = case.make("T")
    drawn = [env.reset(seed)[:, -1] for seed in (0, 1000)]
    for obs, out in run(env):
        drawn.append(obs[case.is_first(obs) & did_step(out), -1])
    numbers = np.concatenate(drawn[:2])
    assert len(set(numbers.tolist())) == 2 * N_ENVS
    episodes = np.concatenate(drawn[2:])
    assert len(set(episodes.tolist())) == len(episodes) > 2 * N_ENVS


@every_case
def test_reset_restarts_all_environments_in_any_state(case: Case) -> None:
    env = case.make("T")
    for n_steps in range(1, 8):  # among these are such that end an episode, or only reset
        for _ in run(env, n_steps=n_steps):
            pass
        assert case.is_first(env.reset(5)).all()
        out = env.step(np.ones(N_ENVS, np.int64))
        assert did_step(out).all()
    env.close()
    env.close()  # does nothing


class Transition(NamedTuple):
    """What one environment did in one step, in Python's own numbers."""

    obs: list[float]
    action: int
    reward: float
    terminated: bool
    truncated: bool
    next_obs: list[float]


def in_batch(env: BatchEnv, seed: int, actions: Array) -> list[list[Transition]]:
    def tell(obs: Array) -> Array:
        return tell_nested(NESTED_SPEC, obs) if env.spec.observation == NESTED_SPEC else obs

    histories: list[list[Transition]] = [[] for _ in range(env.n_envs)]
    obs = env.reset(seed)
    for action in actions:
        out = env.step(action)
        for i in np.flatnonzero(did_step(out)):
            histories[i].append(
                Transition(
                    tell(obs)[i].tolist(),
                    int(action[i]),
                    float(out.reward[i]),
                    bool(out.terminated[i]),
                    bool(out.truncated[i]),
                    tell(out.final_obs)[i].tolist(),
                )
            )
        obs = out.obs
    return histories


def alone(env: gym.Env[Any, Any], seed: int, actions: list[int]) -> list[Transition]:
    histories = []
    obs, _ = env.reset(seed=seed)
    for action in actions:
        after, reward, terminated, truncated, _ = env.step(action)
        histories.append(
            Transition(obs.tolist(), action, float(reward), terminated, truncated, after.tolist())
        )
        obs = env.reset()[0] if terminated or truncated else after
    return histories


plans = st.lists(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from(["T", "C", "TC"])), min_size=1, max_size=3
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
@given(plans, st.integers(0, 2**31), st.integers(1, 25))
@settings(max_examples=40, deadline=None)
def test_batch_sees_what_each_environment_alone_shows(
    make: Callable[[list[Plan]], BatchEnv], plans: list[Plan], seed: int, n_steps: int
) -> None:
    actions = np.random.default_rng(seed).integers(0, 5, (n_steps, len(plans)))
    histories = in_batch(make(plans), seed, actions)
    for i, env in enumerate(make_env() for make_env in telling_makers(plans)):
        assert histories[i] == alone(env, seed + i, [t.action for t in histories[i]])
        assert len(histories[i]) >= (n_steps + 1) // 2, "at most every other step is only a reset"


@pytest.mark.parametrize("name", BATCHES)
def test_only_next_step_mode_spends_steps_on_resets(name: str) -> None:
    histories = in_batch(BATCHES[name]([TERMINATING, TRUNCATING]), 0, np.zeros((8, 2), np.int64))
    expected = 6 if "NEXT_STEP" in name else 8
    assert [len(one) for one in histories] == [expected, expected]
