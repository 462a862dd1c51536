"""The half of acting that needs no network: from its outputs to actions. Loads no torch.

A policy has a chooser and a network. An actor whose networks a server computes builds the chooser
alone, from its `ChooserSpec`, and so has neither parameters nor torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import numpy as np

from asyncrl.agents.parts.exploration import Exploration, Explorer, random_allowed
from asyncrl.core.agent import Act, PolicyContext
from asyncrl.core.env import DiscreteSpec, EnvSpec
from asyncrl.core.inference import MEMORY, NOISE, OBS, OUTPUTS, Inference
from asyncrl.core.recorder import Record
from asyncrl.core.types import Array, BoolArray, Columns

REWARD_SCALE = "reward_scale"
"""Output of a network that normalises rewards, and column of initial priorities."""

CoreKind = Literal["gru", "lstm"]
"""Cho et al. (2014), or Hochreiter and Schmidhuber (1997), whose memory is twice as large."""

MemoryKind = Literal["none", "gru", "lstm"]
"""Kinds of memory of a policy."""


def memory_size(kind: MemoryKind, n_units: int) -> int:
    """Return the size of the memory of this number of units."""
    return n_units * {"none": 0, "gru": 1, "lstm": 2}[kind]


class Memories:
    """A policy's memory of each environment, separate for training and evaluation.

    A synchronous run evaluates the acting policy in the middle of its episodes. There is memory for
    the number of rows of the last step; for any other number it is empty.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: dict[bool, Array] = {}  # by `training`; never changed in place

    def recall(self, n_envs: int, *, training: bool) -> Array:
        """Return the memory (n_envs, size) that the next step starts from."""
        kept = self._kept.get(training)
        if kept is None or len(kept) != n_envs:
            return np.zeros((n_envs, self._size), np.float32)
        return kept

    def keep(self, memory: Array, *, training: bool) -> None:
        """Store this memory (B, size)."""
        self._kept[training] = memory

    def forget(self, where: BoolArray, *, training: bool) -> None:
        """Reset the memory of these environments (B,)."""
        kept = self._kept.get(training)
        if kept is None or not where.any():
            return
        if where.all() or len(where) != len(kept):
            del self._kept[training]
            return
        self._kept[training] = np.where(where[:, None], np.float32(0.0), kept)


@dataclass(frozen=True, slots=True)
class ChooserSpec:
    """How to build a chooser; can be sent to other processes."""

    kind: type[Chooser]

    settings: Mapping[str, Any] = field(default_factory=dict)
    """What its class takes by name, besides the spaces and the context."""

    def __call__(self, spec: EnvSpec, context: PolicyContext) -> Chooser:
        """Build it for these environments."""
        return self.kind(spec, context, **self.settings)


class Chooser(ABC):
    """Chooses actions from the outputs of a network, and remembers what that needs.

    Attributes:
        inference: Computes the network; set by the policy that owns the chooser.
        training: Whether `act` explores.
        env_steps: Environment steps of the whole run, as far as known here: those that the newest
            model came with, or its own count if that is higher. `act` counts the rows that it acts
            on in training. Schedules use it.
        random: Generator of all random choices.
    """

    squashed: ClassVar[bool] = False
    """Whether it squashes outputs by tanh to the bounds of actions."""

    inference: Inference

    def __init__(self, spec: EnvSpec, context: PolicyContext, *, memory_size: int = 0) -> None:
        """Choose for environments of this kind, by a network with a memory of this size."""
        self.training = True
        self.env_steps = 0
        self.random = np.random.default_rng(context.seed)
        self.memories = Memories(memory_size) if memory_size else None

    @abstractmethod
    def act(self, obs: Array) -> Act:
        """Choose an action for each observation; explore if `training`."""

    def train(self, mode: bool = True) -> Self:
        """Switch exploration on or off, and nothing else."""
        self.training = mode
        return self

    def forget(self, where: BoolArray) -> None:
        """Reset the memory of environments in which an episode begins."""
        if self.memories is not None:
            self.memories.forget(where, training=self.training)

    def spread(self, n_actors: int) -> None:  # noqa: B027  # most have no ladder
        """Take the place on a ladder of exploration in a run with this number of actors."""

    def record(self) -> Record:
        """Return numbers to record about acting: none, unless a subclass adds some."""
        return {}

    def ask(self, inputs: Columns) -> tuple[Columns, Columns]:
        """Return the network's answer, and the memory before it as a column, if there is one."""
        if self.memories is None:
            return self.inference(inputs), {}
        memory = self.memories.recall(len(inputs[OBS]), training=self.training)
        before = {MEMORY: memory}
        answer = self.inference({**inputs, **before})
        self.memories.keep(answer[MEMORY], training=self.training)
        return answer, before


class ValueChooser(Chooser):
    """Chooses by the values of all actions."""

    def __init__(
        self,
        spec: EnvSpec,
        context: PolicyContext,
        *,
        exploration: Exploration | None,
        noise_size: int = 0,
        memory_size: int = 0,
        stores_values: bool = False,
    ) -> None:
        """Set up.

        Args:
            spec: Kind of the environments.
            context: Where it acts.
            exploration: How it explores; None leaves that to noise in the network.
            noise_size: Size of one row of the network's noise.
            memory_size: Size of the network's memory, which is stored with actions.
            stores_values: Whether values are stored with actions, for initial priorities.
        """
        super().__init__(spec, context, memory_size=memory_size)
        self.explorer = exploration and Explorer(exploration, context, self.random)
        self.noise_size = noise_size
        self.stores_values = stores_values

    def act(self, obs: Array) -> Act:
        """Choose the best action in each environment, or explore."""
        inputs = {OBS: obs}
        if self.noise_size and self.training:  # different noise in each environment
            inputs[NOISE] = self._noise(len(obs))
        answer, memory = self.ask(inputs)
        q = answer[OUTPUTS]
        if not self.training:
            return Act(q.argmax(axis=1))
        self.env_steps += len(obs)
        action = self.explorer.choose(q, self.env_steps) if self.explorer else q.argmax(axis=1)
        return Act(action, {**memory, **self._values(answer, action)})

    def spread(self, n_actors: int) -> None:
        """Take the place on the ladder of a run with this number of actors."""
        if self.explorer:
            self.explorer.spread(n_actors)

    def forget(self, where: BoolArray) -> None:
        """Also end lasting exploration; evaluations do not explore."""
        super().forget(where)
        if self.training and self.explorer:
            self.explorer.forget(where)

    def record(self) -> Record:
        """Return the current amount of exploration."""
        return self.explorer.record(self.env_steps) if self.explorer else {}

    def _values(self, answer: Columns, action: Array) -> Columns:
        """Return the columns from which a replay computes initial priorities."""
        if not self.stores_values:
            return {}
        q = answer[OUTPUTS]
        values = {"q_taken": q[np.arange(len(q)), action], "q_best": q.max(axis=1)}
        return values | {name: answer[name] for name in answer.keys() & {REWARD_SCALE}}

    def _noise(self, rows: int) -> Array:
        """Sample noise (rows, size): f(e) of normally distributed e."""
        normal = self.random.standard_normal((rows, self.noise_size), np.float32)
        # f(e) = sign(e) sqrt(|e|), see `networks.Perturbation`
        noise: Array = np.copysign(np.sqrt(np.abs(normal)), normal)
        return noise


class LogitChooser(Chooser):
    """Samples from logits, uniformly in the first steps; takes the most likely in evaluation.

    Ties go to the first action.
    """

    def __init__(self, spec: EnvSpec, context: PolicyContext, *, random_env_steps: int = 0) -> None:
        """Choose uniformly in the first steps of the run."""
        super().__init__(spec, context)
        self.random_env_steps = random_env_steps
        self._masked = spec.masked
        self._n_actions = spec.action.n if isinstance(spec.action, DiscreteSpec) else 0

    def act(self, obs: Array) -> Act:
        """Choose an action for each observation."""
        if not self.training:
            return Act(self._logits(obs).argmax(axis=1))
        if self.env_steps >= self.random_env_steps:
            # Gumbel-max trick: argmax(logits + G) is a sample from softmax(logits).
            logits = self._logits(obs)
            action = (logits + self.random.gumbel(size=logits.shape)).argmax(axis=1)
        elif self._masked:  # the outputs say which actions are allowed
            action = random_allowed(self._logits(obs), self.random.random(len(obs)))
        else:
            action = self.random.integers(self._n_actions, size=len(obs))
        self.env_steps += len(obs)
        return Act(action)

    def _logits(self, obs: Array) -> Array:
        return self.inference({OBS: obs})[OUTPUTS]
