"""Small stand-ins for what users bring: an environment that counts, a policy that is a constant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.checkpoint.saver import Saver
from asyncrl.core.agent import Act, PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, EnvStep
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.messages import ModelInfo
from asyncrl.core.recorder import Record
from asyncrl.core.segment import DISCOUNTED_RETURN, ColumnSpec
from asyncrl.core.types import Array, Arrays, BoolArray, Columns, ModelVersion, Params
from asyncrl.learner.evaluation import Scored

COUNTING_SPEC = EnvSpec(
    BoxSpec((2,), "float32", np.full(2, -np.inf), np.full(2, np.inf)), DiscreteSpec(10)
)


class CountingBatch:
    """B environments whose observation is (environment, steps so far), ended after `length`.

    The reward is 10 times the environment plus the action, so every number shows its origin.
    """

    def __init__(self, n_envs: int = 2, length: int = 3, *, truncate: bool = False) -> None:
        self.n_envs = n_envs
        self.spec = COUNTING_SPEC
        self._length = length
        self._truncate = truncate
        self._steps = np.zeros(n_envs, np.int64)
        self.closed = False

    def reset(self, seed: int) -> Array:
        self._steps[:] = 0
        return self._obs(self._steps)

    def step(self, action: Array) -> EnvStep:
        self._steps += 1
        final = self._obs(self._steps)
        ended = self._steps >= self._length
        self._steps = np.where(ended, 0, self._steps)
        obs = self._obs(self._steps) if ended.any() else final
        never = np.zeros(self.n_envs, bool)
        reward = (10 * np.arange(self.n_envs) + action).astype(np.float32)
        terminated, truncated = (never, ended) if self._truncate else (ended, never)
        return EnvStep(obs, reward, terminated, truncated, final)

    def close(self) -> None:
        self.closed = True

    def _obs(self, steps: Array) -> Array:
        return np.stack([np.arange(self.n_envs), steps], axis=1).astype(np.float32)


_KEPT = 5000
"""Batches that an agent remembers, since some runs are long."""


class ConstantAgent:
    """Always does what its one parameter says; learning adds 1 to that."""

    def __init__(self, action: int = 0) -> None:
        self.params = {"action": np.array(action, np.int64)}
        self.training = True
        self.opt_steps = 0
        self.batches: list[Columns] = []

    def act(self, obs: Array) -> Act:
        return Act(np.full(len(obs), int(self.params["action"]), np.int64))

    def train(self, mode: bool = True) -> object:
        self.training = mode
        return self

    def record(self) -> Record:
        return {"exploration_rate": 0.25}

    def model_info(self) -> ModelInfo:
        params = {name: value.copy() for name, value in self.params.items()}
        return ModelInfo(version=ModelVersion(self.opt_steps), params=params)

    def sync_model(self, info: ModelInfo) -> None:
        shapes = {name: value.shape for name, value in info.params.items()}
        if shapes != {"action": ()}:
            raise ConfigError(f"a constant has one action, got {shapes}")
        self.params = {name: np.array(value) for name, value in info.params.items()}

    def opt(self, batch: Columns) -> Mapping[str, float]:
        self.batches.append(batch)
        del self.batches[:-_KEPT]
        self.opt_steps += 1
        self.params = {"action": np.array((self.params["action"] + 1) % 10)}
        return {"loss": 1.0 / self.opt_steps}

    def state(self) -> Params:
        return {**self.params, "opt_steps": np.array(self.opt_steps)}

    def load_state(self, state: Params) -> None:
        if set(state) != {"action", "opt_steps"}:
            raise CheckpointError(f"a constant has an action and a count, got {sorted(state)}")
        self.opt_steps = int(state["opt_steps"])
        self.params = {"action": np.array(state["action"])}


class ThriftyAgent(ConstantAgent):
    """Puts its state where an older one was."""

    def __init__(self) -> None:
        super().__init__()
        self.spare: Params = {}

    def state(self) -> Params:
        spare, self.spare = self.spare, {}
        state = {name: np.array(value) for name, value in super().state().items()}
        for name in spare.keys() & state.keys():
            spare[name][...] = state[name]
        return {**state, **spare}


class CountingMemory(ConstantAgent):
    """Acts as the number of steps that it remembers of each environment's episode."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[bool, Array] = {}
        self.forgotten: list[list[bool]] = []

    def act(self, obs: Array) -> Act:
        seen = self.seen.get(self.training, np.zeros(len(obs), np.int64))
        self.seen[self.training] = seen + 1
        return Act(seen)

    def forget(self, where: BoolArray) -> None:
        self.forgotten.append(where.tolist())
        seen = self.seen.get(self.training, np.zeros(len(where), np.int64))
        self.seen[self.training] = np.where(where, 0, seen)


class DirectSaver(Saver):
    """Writes in the caller's turn, so that a test knows when."""

    def save(self, name: str, groups: Mapping[str, Arrays], meta: Mapping[str, Any]) -> None:
        self._checkpointer.save(name, groups, meta)

    def close(self, timeout_s: float) -> None:
        pass


class FakeCheckpointer(Checkpointer):
    """Keeps in memory what it should save."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.saved: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = []

    def save(self, name: str, groups: Mapping[str, Any], meta: Mapping[str, Any]) -> Path:
        self.saved.append((name, groups, meta))
        return Path(name)

    def names(self) -> list[str]:
        return [name for name, _, _ in self.saved]

    def load(self, name: str, *, mapped: Collection[str] = ()) -> Checkpoint:
        return next(Checkpoint(g, meta) for n, g, meta in reversed(self.saved) if n == name)


class FakeSite:
    """Scores models, at once or, if `slow`, when the test says so.

    After the scores that it was given, that of a model is its version.
    """

    def __init__(self, *scores: float, slow: bool = False) -> None:
        self.scores = list(scores)
        self.slow = slow
        self.requested: list[int] = []
        self.pending: ModelInfo | None = None
        self.answers: list[Scored] = []
        self.on_take: Callable[[], object] = lambda: None
        self.on_request: Callable[[], object] = lambda: None
        self.record = {"eval/length_mean": 5.0}

    @property
    def busy(self) -> bool:
        return self.pending is not None

    def request(self, model: ModelInfo) -> None:
        assert not self.busy, "one at a time"
        self.requested.append(int(model.version))
        self.pending = model
        self.on_request()
        if not self.slow:
            self.answer()

    def answer(self) -> None:
        assert self.pending is not None
        score = self.scores.pop(0) if self.scores else float(self.pending.version)
        self.answers.append(Scored(self.pending, score, self.record))
        self.pending = None

    def take(self) -> list[Scored]:
        self.on_take()
        answers, self.answers = self.answers, []
        return answers


class NoProgress:
    """Do nothing: no supervisor watches."""

    def turn(self, produced: int) -> None: ...

    def waiting(self, waiting: bool) -> None: ...

    def finishing(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantConfig:
    """Builds `ConstantAgent`s."""

    action: int = 0

    def build(self, spec: EnvSpec, context: PolicyContext) -> ConstantAgent:
        return ConstantAgent(self.action)

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> ConstantAgent:
        return ConstantAgent(self.action)

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        return ()


class AskingConfig(ConstantConfig):
    """Builds agents that ask for the discounted return of each episode so far."""

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        return (ColumnSpec(DISCOUNTED_RETURN, "float32"),)
