"""Single Gymnasium environments stepped together, one after another, in one process.

Ended episodes are reset at once, so no step is wasted. Starts no processes and vectorizes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from operator import attrgetter, length_hint
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from asyncrl.core.env import DiscreteSpec, EnvSpec, EnvStep
from asyncrl.core.env_checks import shown
from asyncrl.core.errors import ConfigError
from asyncrl.core.goals import GoalReward
from asyncrl.core.types import Array, BoolArray
from asyncrl.envs.checks import Checks, first_obs, of_api, space_of
from asyncrl.envs.goals import goal_reward_of
from asyncrl.envs.infos import EpisodeInfo
from asyncrl.envs.spaces import ActionEncoder, Parts, spec_from_spaces

_NEVER = 2**62

_limit: Callable[[object], int] = attrgetter("_max_episode_steps")


class TimeLimits:
    """The remaining steps of each episode in a batch."""

    def __init__(self, envs: Sequence[gym.Env[Any, Any]]) -> None:
        unwrapped = [_unwrap(env) for env in envs]
        self.steps: list[Callable[[Any], Any]] = [env.step for env, _ in unwrapped]
        """The step function of each environment, without the wrappers. Call it only after a
        reset."""
        self._wrappers = [wrapper for _, wrapper in unwrapped]
        self._known: list[int] = [_limit(wrapper) for wrapper in self._wrappers]
        self._limits = np.array(self._known, np.int64)
        self._ends = self._limits.copy()
        self._turn = 0
        self._next_end = 0  # no episode can reach its limit earlier

    def begin(self, env_ids: Sequence[int]) -> None:
        """Record that these environments start new episodes."""
        rows = np.asarray(env_ids)
        for i in env_ids:
            if (limit := _limit(self._wrappers[i])) != self._known[i]:
                self._known[i] = self._limits[i] = limit
                self._next_end = 0
        self._ends[rows] = self._turn + self._limits[rows]

    def cut(self, truncated: BoolArray) -> BoolArray:
        """Count a step of each environment; add truncation at the step limit to the flags."""
        self._turn += 1
        if self._turn < self._next_end:
            return truncated
        over = self._ends <= self._turn
        # Episodes at their limit restart now, and no new one can reach its limit before this.
        soonest = self._turn + int(self._limits.min())
        self._next_end = int(self._ends[~over].min(initial=soonest))
        return truncated | over


class _StrictestLimit:
    """Several TimeLimit wrappers as one; the strictest limit applies."""

    def __init__(self, wrappers: Sequence[TimeLimit[Any, Any]]) -> None:
        self._wrappers = wrappers

    @property
    def _max_episode_steps(self) -> int:
        return min((_limit(wrapper) for wrapper in self._wrappers), default=_NEVER)


def _unwrap(
    env: gym.Env[Any, Any],
) -> tuple[gym.Env[Any, Any], TimeLimit[Any, Any] | _StrictestLimit]:
    """Return the environment inside Gymnasium's wrappers, and its time limit."""
    limits = []
    # Exactly these classes: a subclass may do more, and so may a `step` set on the instance.
    while type(env) in {TimeLimit, OrderEnforcing} and "step" not in vars(env):
        if isinstance(env, TimeLimit):
            limits.append(env)
        env = env.env  # type: ignore[attr-defined]
    return env, limits[0] if len(limits) == 1 else _StrictestLimit(limits)


MakeEnv = Callable[[], gym.Env[Any, Any]]
"""Makes one single environment."""


class PlainBatch:
    """A `BatchEnv` over single environments of one kind.

    Discrete actions reach the environments as Python ints, Box actions as arrays. Exceptions of an
    environment are passed on unchanged, with a note that names the environment.
    """

    checks_itself = True

    def __init__(
        self, make: MakeEnv | Sequence[MakeEnv], n_envs: int, info: Sequence[str] = ()
    ) -> None:
        """Make the environments; a sequence holds one factory for each of them.

        `info` are keys as in `EnvConfig.info`.
        """
        makers = [make] * n_envs if callable(make) else list(make)
        if n_envs < 1 or len(makers) != n_envs:
            raise ConfigError(
                f"a batch needs at least 1 environment, and one factory for each: got n_envs="
                f"{n_envs} and {len(makers)} factories"
            )
        self._envs = _make_all(makers)
        first = self._envs[0]
        with ExitStack() as undo:
            undo.callback(self.close)
            spaces = space_of(first, "observation_space"), space_of(first, "action_space")
            self._spec = spec_from_spaces(*spaces)
            _require_one_kind(self._envs)
            undo.pop_all()
        self._limits = TimeLimits(self._envs)
        # Raises, until the first reset, that a reset is needed.
        self._steps: list[Callable[[Any], Any]] = [env.step for env in self._envs]
        self._encode = ActionEncoder(first.action_space, n_envs)
        self._discrete = isinstance(self._spec.action, DiscreteSpec)
        parts = Parts(first.observation_space)
        self._checks = Checks(_name(first), n_envs, self._spec.observation, parts)
        self._info = EpisodeInfo(info, n_envs, _name(first))
        self._all_envs = range(n_envs)
        self._n_envs = n_envs

    @property
    def spec(self) -> EnvSpec:
        """Spaces of one environment."""
        return self._spec

    @property
    def n_envs(self) -> int:
        """Number of environments."""
        return self._n_envs

    @property
    def goal_reward(self) -> GoalReward | None:
        """How rewards are computed from goals, which steps an environment; None without goals."""
        return goal_reward_of(self._envs[0])

    def reset(self, seed: int) -> Array:
        """Reset all environments; environment i is seeded with `seed + i`, as in Gymnasium."""
        obs = self._reset(self._all_envs, seed)
        self._info.begin()
        self._steps = self._limits.steps
        return obs

    def step(self, action: Array) -> EnvStep:
        """Step all environments, then reset those whose episode ended."""
        answers = self._step_all(self._encode(action))
        try:
            rows, rewards, terminations, truncations, infos = zip(*answers, strict=True)
        except (TypeError, ValueError):
            for i, answer in enumerate(answers):
                of_api("step", answer, self._checks.place(i))
            raise  # a bug of asyncrl, not of the environment
        final_obs = self._checks.stack(rows, self._all_envs, action)
        self._checks.sound_obs("observation", final_obs, action)
        reward = self._checks.reward(rewards, action)
        self._checks.finite_reward(rewards, reward, action)
        terminated = self._flags("terminated", terminations)
        truncated = self._limits.cut(self._flags("truncated", truncations))
        over = terminated | truncated
        if self._info.every_step:
            self._info.add(infos, infos, over)
        ended = over.nonzero()[0]
        if not len(ended):
            return EnvStep(final_obs, reward, terminated, truncated, final_obs)
        info = self._info.take(infos, ended)
        # `final_obs` is already a copy, so an environment that reuses its arrays cannot change it.
        obs = final_obs.copy()
        obs[ended] = self._reset(ended.tolist(), None)
        return EnvStep(obs, reward, terminated, truncated, final_obs, info=info)

    def rest(self, resting: BoolArray) -> None:
        """Step these no more until the next reset. Each is stepped once more, for a row to keep."""
        self._steps = [
            _Kept(step) if rests and not isinstance(step, _Kept) else step
            for step, rests in zip(self._steps, resting.tolist(), strict=True)
        ]

    def close(self) -> None:
        """Close all environments, even if closing one of them fails."""
        envs, self._envs = self._envs, []
        with ExitStack() as closing:
            for env in envs:
                closing.callback(env.close)

    def _step_all(self, actions: Array) -> list[tuple[Any, Any, Any, Any, Any]]:
        # Python ints, because environments in Python are faster with them.
        each = actions.tolist() if self._discrete else [actions[i, ...] for i in self._all_envs]
        waiting = iter(each)
        try:
            return [step(action) for step, action in zip(self._steps, waiting, strict=True)]
        except Exception as error:
            # Derived from the iterator afterwards: counting would cost time at every step.
            env_id = len(actions) - length_hint(waiting) - 1
            _note(
                error, f"in step of {self._checks.place(env_id)}, action {shown(actions[env_id])}"
            )
            raise

    def _flags(self, what: str, flags: Sequence[Any]) -> BoolArray:
        # Mostly no episode ends, and then the array need not be filled item by item.
        with suppress(ValueError):  # arrays of several flags, which are refused
            if not any(flags):
                return np.zeros(self._n_envs, bool)
        return self._checks.flags(what, flags)

    def _reset(self, env_ids: Sequence[int], seed: int | None) -> Array:
        rows = []
        for i in env_ids:
            seed_i = None if seed is None else seed + i
            rows.append(first_obs(self._envs[i], self._checks.place(i), seed=seed_i))
        self._limits.begin(env_ids)
        obs = self._checks.stack(rows, env_ids, None)
        self._checks.sound_obs("first observation of an episode", obs, None, np.asarray(env_ids))
        return obs


class _Kept:
    """A step function that answers always as it does first, without a reward or an end."""

    def __init__(self, step: Callable[[Any], Any]) -> None:
        self._step = step
        self._answer: tuple[Any, ...] = ()

    def __call__(self, action: Any) -> tuple[Any, ...]:  # noqa: ANN401
        if not self._answer:
            obs, *_, info = self._step(action)
            self._answer = (obs, 0.0, False, False, info)
        return self._answer


def _make_all(makers: Iterable[MakeEnv]) -> list[gym.Env[Any, Any]]:
    with ExitStack() as undo:
        envs: list[gym.Env[Any, Any]] = []
        for make in makers:
            env = make()
            if not isinstance(env, gym.Env):
                raise ConfigError(f"a factory of single environments returned {env!r}")
            if any(env is other for other in envs):
                raise ConfigError(
                    f"the factory returned the same environment twice: {env}. Each call must make "
                    "a new one."
                )
            envs.append(env)
            undo.callback(env.close)
        undo.pop_all()
    return envs


def _require_one_kind(envs: Sequence[gym.Env[Any, Any]]) -> None:
    first = envs[0].observation_space, envs[0].action_space
    for i, env in enumerate(envs):
        found = env.observation_space, env.action_space
        if found != first:
            raise ConfigError(
                f"environments of one batch must have the same spaces; number 0 has {first[0]} and "
                f"{first[1]}, number {i} has {found[0]} and {found[1]}"
            )


def _name(env: gym.Env[Any, Any]) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _note(error: Exception, where: str) -> None:
    error.add_note(f"asyncrl: {where}")
