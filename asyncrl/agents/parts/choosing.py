"""The half of acting that needs no network: from its outputs to actions. Loads no torch.

A policy is a chooser with a network. An actor whose networks a server computes has the chooser
alone, and so neither parameters nor torch: `policy.chooser` builds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Self

import numpy as np

from asyncrl.agents.parts.exploration import Exploration, Explorer, random_allowed
from asyncrl.agents.parts.memories import Memories
from asyncrl.core.agent import Act, PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.inference import MEMORY, NOISE, OBS, OUTPUTS, Inference
from asyncrl.core.recorder import Record
from asyncrl.core.types import Array, BoolArray, Columns

REWARD_SCALE = "reward_scale"
"""Output of a network that normalises rewards, and column of initial priorities."""


Settings = Mapping[str, Any]
"""What a chooser is set up with, by name; can be sent to other processes."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build a chooser: its class, and what its `set_up` takes."""

    kind: type[Chooser]
    settings: Settings

    def __call__(self, spec: EnvSpec, context: PolicyContext) -> Chooser:
        """Build it for these environments."""
        chooser = self.kind()
        chooser.set_up(spec, context, self.settings)
        return chooser

    def also(self, kind: type[Chooser], **settings: Any) -> Recipe:  # noqa: ANN401
        """Return the recipe of a subclass with further settings."""
        return Recipe(kind, {**self.settings, **settings})

    def describes(self, policy: type) -> bool:
        """Whether policies of a class act by these methods alone."""
        methods = {
            name
            for cls in self.kind.__mro__
            for name, value in vars(cls).items()
            if isinstance(value, FunctionType) and not name.startswith("__")
        }
        return all(getattr(policy, name) is getattr(self.kind, name) for name in methods)


class Chooser:
    """What all policies count, and whether they explore. A subclass adds `set_up` and `act`.

    A policy with a network derives from `TorchPolicy` and from its chooser, in that order.

    Attributes:
        inference: Computes the network.
        env_steps: Environment steps of the whole run, as far as known here: those that the newest
            model came with, or its own count if that is higher. Schedules use it.
        recipe: Builds the policy's chooser; None if it has none.
    """

    inference: Inference

    def __init__(self) -> None:
        self.env_steps = 0
        self.recipe: Recipe | None = None
        self.__training = True

    def set_up(self, spec: EnvSpec, context: PolicyContext, settings: Settings) -> None:
        """Begin to choose for these environments."""

    @property
    def training(self) -> bool:
        """Whether `act` explores."""
        return self.__training

    def train(self, mode: bool = True) -> Self:
        """Switch exploration on or off, and nothing else."""
        self.__training = mode
        return self

    def record(self) -> Record:
        """Return numbers to record about acting: none, unless a subclass adds some."""
        return {}

    @property
    def chooser(self) -> Recipe | None:
        """What builds a policy that acts like this one, without a network.

        None if there is nothing: a subclass has changed how it acts.
        """
        return self.recipe if self.recipe and self.recipe.describes(type(self)) else None


class ValueChooser(Chooser):
    """Chooses by the values of all actions.

    Hooks: `answers(obs)` returns these values, `extras(q, action)` is stored with actions.
    """

    def set_up(self, spec: EnvSpec, context: PolicyContext, settings: Settings) -> None:
        """Take `exploration`, and `noise_size`, the size of one row of the network's noise."""
        exploration: Exploration | None = settings["exploration"]
        self.random = np.random.default_rng(context.seed)
        self.explorer = exploration and Explorer(exploration, context, self.random)
        self.noise_size: int = settings["noise_size"]

    def act(self, obs: Array) -> Act:
        """Choose the best action in each environment, or explore."""
        if not self.training:
            return Act(self.answers(obs).argmax(axis=1))
        if self.noise_size:  # different noise in each environment
            q = self.answers(obs, **{NOISE: self.__noise(len(obs))})
        else:
            q = self.answers(obs)
        self.env_steps += len(obs)
        action = self.explorer.choose(q, self.env_steps) if self.explorer else q.argmax(axis=1)
        return Act(action, self.extras(q, action))

    def spread(self, n_actors: int) -> None:
        """Take the place on the ladder of a run with this number of actors."""
        if self.explorer:
            self.explorer.spread(n_actors)

    def forget(self, where: BoolArray) -> None:
        """End lasting exploration where an episode begins; evaluations do not explore."""
        if self.training and self.explorer:
            self.explorer.forget(where)

    def record(self) -> Record:
        """Return the current amount of exploration."""
        return self.explorer.record(self.env_steps) if self.explorer else {}

    def extras(self, q: Array, action: Array) -> Columns:
        """Return columns to store with actions: none, unless a subclass adds some."""
        return {}

    def answers(self, obs: Array, **others: Array) -> Array:
        """Return the values (B, actions) of observations; `others` are further inputs."""
        return self.inference({OBS: obs, **others})[OUTPUTS]

    def __noise(self, rows: int) -> Array:
        """Sample noise (rows, size): f(e) of normally distributed e."""
        normal = self.random.standard_normal((rows, self.noise_size), np.float32)
        # f(e) = sign(e) sqrt(|e|), see `networks.Perturbation`
        noise: Array = np.copysign(np.sqrt(np.abs(normal)), normal)
        return noise


class PrioritisingChooser(ValueChooser):
    """Also stores values, from which a replay computes initial priorities."""

    stores_values = False
    """Whether it does."""

    def set_up(self, spec: EnvSpec, context: PolicyContext, settings: Settings) -> None:
        """Take `stores_values`."""
        super().set_up(spec, context, settings)
        self.stores_values = settings["stores_values"]

    def answers(self, obs: Array, **others: Array) -> Array:
        answer = self.inference({OBS: obs, **others})
        self.__scale = answer.get(REWARD_SCALE)
        return answer[OUTPUTS]

    def extras(self, q: Array, action: Array) -> Columns:
        if not self.stores_values:
            return {}
        values = {"q_taken": q[np.arange(len(q)), action], "q_best": q.max(axis=1)}
        return values if self.__scale is None else {**values, REWARD_SCALE: self.__scale}


class RecurrentChooser(ValueChooser):
    """Chooses with a memory of each environment's episode, and stores it."""

    def set_up(self, spec: EnvSpec, context: PolicyContext, settings: Settings) -> None:
        """Take `memory_size`."""
        super().set_up(spec, context, settings)
        self.remember(settings["memory_size"])

    def remember(self, size: int) -> None:
        """Begin with empty memories of this size."""
        self.memories = Memories(size)
        self.__before = self.memories.recall(0, training=True)

    def forget(self, where: BoolArray) -> None:
        """Reset the memory of environments in which an episode begins."""
        super().forget(where)
        self.memories.forget(where, training=self.training)

    def answers(self, obs: Array, **others: Array) -> Array:
        memory = self.memories.recall(len(obs), training=self.training)
        answer = self.inference({OBS: obs, MEMORY: memory, **others})
        self.memories.keep(answer[MEMORY], training=self.training)
        self.__before = memory
        return answer[OUTPUTS]

    def extras(self, q: Array, action: Array) -> Columns:
        """Return the memory before these observations."""
        return {MEMORY: self.__before}


class LogitChooser(Chooser):
    """Samples from logits, uniformly in the first steps; takes the most likely in evaluation.

    Ties go to the first action.
    """

    def set_up(self, spec: EnvSpec, context: PolicyContext, settings: Settings) -> None:
        """Take `n_actions`, `random_env_steps`, and whether observations are `masked`."""
        self.n_actions: int = settings["n_actions"]
        self.__masked: bool = settings["masked"]
        self.random = np.random.default_rng(context.seed)
        self.__random_env_steps: int = settings["random_env_steps"]

    def act(self, obs: Array) -> Act:
        """Choose an action for each observation."""
        if not self.training:
            return Act(self.inference({OBS: obs})[OUTPUTS].argmax(axis=1))
        if self.env_steps < self.__random_env_steps:
            if self.__masked:  # the outputs say which actions are allowed
                share = self.random.random(len(obs))
                action = random_allowed(self.inference({OBS: obs})[OUTPUTS], share)
            else:
                action = self.random.integers(self.n_actions, size=len(obs))
        else:
            # Gumbel-max trick: argmax(logits + G) is a sample from softmax(logits).
            noise = self.random.gumbel(size=(len(obs), self.n_actions))
            action = (self.inference({OBS: obs})[OUTPUTS] + noise).argmax(axis=1)
        self.env_steps += len(obs)
        return Act(action)
