"""One environment step to 0..n rows of experience. Does not know where rows go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from asyncrl.agent import Act
from asyncrl.env import EnvSpec, EnvStep
from asyncrl.segment import END, TERMINATED, TRUNCATED, ColumnSpec
from asyncrl.types import Array, Columns, IntArray, ModelVersion

__all__ = ["OneStep", "Rows", "Step", "StepProcessor"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a batch of environments, as the actor saw it."""

    obs: Array
    act: Act
    outcome: EnvStep
    model_version: ModelVersion


class Rows(NamedTuple):
    """One row for each of some environments, to be appended to their streams."""

    env_ids: IntArray
    columns: Columns
    """Columns left out keep whatever they hold; only `END` rows may leave any out."""


class StepProcessor(Protocol):
    """Turns steps into rows. One processor serves one batch of environments for its whole life."""

    def columns(self, spec: EnvSpec, extras: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
        """Return the columns of its rows, given the environment's and the policy's."""
        ...

    def process(self, step: Step) -> Iterator[Rows]:
        """Yield the rows of one step, in the order in which they are to be stored."""
        ...

    def finish(self, obs: Array) -> Iterator[Rows]:
        """Yield what closes every stream: `obs` is where the environments stand now."""
        ...


class OneStep:
    """Each step becomes one row; an episode's end becomes one more, its last observation."""

    def columns(self, spec: EnvSpec, extras: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
        """Observation, action, reward, flags, model version, and the policy's own columns."""
        return (
            ColumnSpec("obs", spec.observation.dtype, spec.observation.shape),
            ColumnSpec("action", spec.action.dtype, spec.action.shape),
            ColumnSpec("reward", "float32"),
            ColumnSpec("flags", "uint8"),
            ColumnSpec("model_version", "int32"),
            *extras,
        )

    def process(self, step: Step) -> Iterator[Rows]:
        """Yield the step's rows, then the last observations of episodes that ended in it."""
        out = step.outcome
        flags = out.terminated * TERMINATED + out.truncated * TRUNCATED
        columns = {
            "obs": step.obs,
            "action": step.act.action,
            "reward": out.reward,
            "flags": flags,
            "model_version": np.full(len(flags), step.model_version, np.int32),
            **step.act.extras,
        }
        if out.stepped is None:
            yield Rows(np.arange(len(flags)), columns)
        else:
            stepped = np.flatnonzero(out.stepped)
            yield Rows(stepped, {name: column[stepped] for name, column in columns.items()})
        if len(ended := np.flatnonzero(flags)):
            yield _end_rows(ended, out.final_obs[ended])

    def finish(self, obs: Array) -> Iterator[Rows]:
        """Yield the observation after the last row of every environment."""
        yield _end_rows(np.arange(len(obs)), obs)


def _end_rows(env_ids: IntArray, obs: Array) -> Rows:
    return Rows(env_ids, {"obs": obs, "flags": np.full(len(env_ids), END, np.uint8)})
