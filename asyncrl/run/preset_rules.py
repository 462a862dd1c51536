"""Which preset suits an environment: one table, of which the first row that fits is taken.

`suggested_for` looks at an environment in a child process first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from asyncrl.core.env import (
    BoxSpec,
    DiscreteSpec,
    EnvDescription,
    MakeBatchEnv,
    description_of,
    make_batch_env,
    plain_description,
    source_of,
)
from asyncrl.fleet.in_child import run_in_child
from asyncrl.run.describe_env import PRELOAD

if TYPE_CHECKING:
    from asyncrl.envs.gym import EnvConfig

CHEAP_STEP_S = 1e-3
"""Steps below this are cheap: more of them cost less than learning more from each."""

_STEPPING_S = 0.2
"""How long random actions are taken to measure a step."""

_LARGE_PICTURE = 32 * 32
"""Pixels from which a picture needs the network of Atari games."""

_FRAMES = 4
"""Frames of a stack in Atari games, which their presets send and store once."""

_JOINTS_OF_ONE_OR_TWO_LEGS = range(3, 7)
"""Numbers in an action of Hopper, BipedalWalker and Walker2d. Ant, which can stand still, has 8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvFacts:
    """What the choice depends on."""

    id: str
    seen: EnvDescription
    step_s: float
    """Median seconds of a step of one environment."""

    fails: bool = True
    """Whether random actions end episodes before their limit, as where something can fall."""

    @property
    def has_choices(self) -> bool:
        """Whether an action is one of a few choices, or several such."""
        action = self.seen.spec.action
        return isinstance(action, DiscreteSpec) or action.categorical

    @property
    def joints(self) -> int:
        """Numbers in a continuous action; 0 if actions are choices."""
        return 0 if self.has_choices else prod(self.seen.spec.action.shape)

    @property
    def is_numbered(self) -> bool:
        """Whether states and actions are numbers of a list, as in toy text."""
        obs, action = self.seen.spec.observation, self.seen.spec.action
        is_list = isinstance(obs, BoxSpec) and obs.categorical
        return is_list and isinstance(action, DiscreteSpec)

    @property
    def has_frames(self) -> bool:
        """Whether an observation is a stack of large pictures, as presets for Atari store it."""
        obs = self.seen.spec.observation
        is_stack = isinstance(obs, BoxSpec) and len(obs.shape) == 3 and obs.shape[0] == _FRAMES
        return is_stack and prod(obs.shape[1:]) >= _LARGE_PICTURE

    @property
    def is_cheap(self) -> bool:
        """Whether a step takes less than `CHEAP_STEP_S`."""
        return self.step_s < CHEAP_STEP_S


class Rule(NamedTuple):
    """A row of the table."""

    preset: str
    why: str
    fits: Callable[[EnvFacts], bool]


RULES = (
    Rule(
        "dqn-mountaincar",
        "its goal is found only by actions that last",
        lambda env: env.id == "MountainCar-v0",
    ),
    Rule(
        "sac-mountaincar",
        "its goal is found only by actions that last",
        lambda env: env.id == "MountainCarContinuous-v0",
    ),
    Rule(
        "sac-goals",
        "observations have goals, so hindsight learns from failures",
        lambda env: env.seen.goal_reward is not None and not env.has_choices,
    ),
    Rule("dqn-toy", "states and actions are numbers of a list", lambda env: env.is_numbered),
    Rule(
        "ppo-atari",
        "observations are stacks of large pictures, actions choices, steps cheap",
        lambda env: env.has_frames and env.has_choices and env.is_cheap,
    ),
    Rule(
        "dqn-atari",
        "observations are stacks of large pictures, actions choices",
        lambda env: env.has_frames and env.has_choices,
    ),
    Rule(
        "ppo-mujoco",
        "actions are continuous, steps cheap, and random ones end no episode",
        lambda env: not env.has_choices and env.is_cheap and not env.fails,
    ),
    Rule(
        "ppo-walker",
        "actions are those of one or two legs, steps cheap, and random ones end episodes",
        lambda env: env.joints in _JOINTS_OF_ONE_OR_TWO_LEGS and env.is_cheap,
    ),
    Rule(
        "ppo",
        "actions are choices, or steps cheap",
        lambda env: env.has_choices or env.is_cheap,
    ),
    Rule("crossq-mujoco", "actions are continuous and steps dear", lambda _: True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A preset, and why."""

    preset: str
    why: str


def suggest(env: EnvFacts) -> Suggestion:
    """Return the preset of the first row that fits."""
    rule = next(rule for rule in RULES if rule.fits(env))
    took = f"{1e3 * env.step_s:.2g} ms" if env.step_s >= 1e-3 else f"{1e6 * env.step_s:.2g} us"
    return Suggestion(preset=rule.preset, why=f"{rule.why}; a step takes {took}")


def if_cheap(seen: EnvDescription) -> str:
    """Return the preset that suits cheap steps; two if it depends on what random actions end."""
    facts = [EnvFacts(id="", seen=seen, step_s=0.0, fails=fails) for fails in (True, False)]
    return " or ".join(dict.fromkeys(suggest(one).preset for one in facts))


def suggested_for(env: EnvConfig, *, timeout_s: float) -> Suggestion:
    """Look at an environment in a child process, and return what suits it."""
    plain: dict[str, Any] = run_in_child(
        partial(_look, replace(env, n_envs=1).build),
        what="building the environment",
        timeout_s=timeout_s,
        preload=PRELOAD,
    )
    step_s, fails = plain.pop("step_s"), plain.pop("fails")
    seen = description_of(plain)
    return suggest(EnvFacts(id=env.id, seen=seen, step_s=step_s, fails=fails))


def _look(make_env: MakeBatchEnv) -> dict[str, Any]:
    """Describe and try an environment, in the child."""
    seen = plain_description(source_of(make_env).describe(goals=True))
    return {**seen, **_tried(make_env)}


def _tried(make_env: MakeBatchEnv) -> dict[str, Any]:
    """Take random actions; return how long a step takes, and whether they end episodes."""
    from asyncrl.envs.spaces import random_allowed_actions  # noqa: PLC0415  # loads Gymnasium

    env = make_batch_env(make_env)
    random, step_s, fails = np.random.default_rng(0), list[float](), False
    try:
        obs, until = env.reset(0), time.perf_counter() + _STEPPING_S
        while not step_s or time.perf_counter() < until:
            action = random_allowed_actions(env.spec, obs, random)
            begun = time.perf_counter()
            outcome = env.step(action)
            step_s.append((time.perf_counter() - begun) / env.n_envs)
            obs, fails = outcome.obs, fails or bool(outcome.terminated.any())
    finally:
        env.close()
    return {"step_s": float(np.median(step_s)), "fails": fails}
