"""Which preset suits an environment: one table, of which the first row that fits is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvDescription

CHEAP_STEP_S = 1e-3
"""Steps below this are cheap: more of them cost less than learning more from each."""

_LARGE_PICTURE = 32 * 32
"""Pixels from which a picture needs the network of Atari games."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvFacts:
    """What the choice depends on."""

    id: str
    seen: EnvDescription
    step_s: float
    """Median seconds of a step of one environment."""

    @property
    def has_choices(self) -> bool:
        """Whether an action is one of a few choices, or several such."""
        action = self.seen.spec.action
        return isinstance(action, DiscreteSpec) or action.categorical

    @property
    def is_numbered(self) -> bool:
        """Whether states and actions are numbers of a list, as in toy text."""
        obs, action = self.seen.spec.observation, self.seen.spec.action
        is_list = isinstance(obs, BoxSpec) and obs.categorical
        return is_list and isinstance(action, DiscreteSpec)

    @property
    def pixels(self) -> int:
        """Height times width of a picture; 0 if observations are no pictures."""
        obs = self.seen.spec.observation
        if not isinstance(obs, BoxSpec) or len(obs.shape) < 3:
            return 0
        return prod(sorted(obs.shape)[-2:])

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
        "dqn-atari",
        "observations are large pictures, actions choices",
        lambda env: env.pixels >= _LARGE_PICTURE and env.has_choices,
    ),
    Rule("ppo", "actions are choices", lambda env: env.has_choices),
    Rule("ppo-mujoco", "actions are continuous and steps cheap", lambda env: env.is_cheap),
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
