"""A custom algorithm: one class with all the methods that asyncrl needs.

The algorithm is tabular Q-learning without torch, on eight rooms in a row. The model that is sent
to actors is the table. Any named arrays can be a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import gymnasium as gym
import numpy as np

from asyncrl import (
    Act,
    CheckpointError,
    ColumnSpec,
    ConfigError,
    EnvSpec,
    MaxOptSteps,
    ModelInfo,
    PolicyContext,
    ReachesUpperBound,
    RunConfig,
    TrainResult,
    make_batch,
    train_async,
)
from asyncrl.core.env import DiscreteSpec
from asyncrl.core.types import Array, Columns, Params

ROOMS = 8


class Rooms(gym.Env[Array, np.int64]):
    """Eight rooms in a row: the last one has a prize worth 1, and every other step costs 0.1."""

    observation_space = gym.spaces.Box(0, ROOMS - 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Array, dict[str, object]]:
        """Begin in a random room."""
        super().reset(seed=seed)
        self.room = int(self.np_random.integers(ROOMS - 1))
        return np.array([self.room], np.float32), {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, object]]:
        """Go left or right."""
        self.room = max(0, self.room + (1 if action else -1))
        won = self.room == ROOMS - 1
        return np.array([self.room], np.float32), 1.0 if won else -0.1, won, False, {}


class Table:
    """Q(s, a) += rate * (r + discount * max_a' Q(s', a') - Q(s, a))."""

    def __init__(self, config: TableConfig, n_actions: int, seed: int) -> None:
        self.config = config
        self.q = np.zeros((ROOMS, n_actions), np.float32)
        self.random = np.random.default_rng(seed)
        self.training = True

    def act(self, obs: Array) -> Act:
        """Return an action for each environment of an actor."""
        best = self.q[obs[:, 0].astype(int)].argmax(axis=1)
        if not self.training:
            return Act(best)
        explores = self.random.random(len(best)) < self.config.epsilon
        return Act(np.where(explores, self.random.integers(self.q.shape[1], size=len(best)), best))

    def opt(self, batch: Columns) -> Mapping[str, float]:
        """Do one optimisation step on a batch."""
        room, after = batch["obs"][:, 0].astype(int), batch["next_obs"][:, 0].astype(int)
        target = batch["reward"] + batch["discount"] * self.q[after].max(axis=1)
        error = target - self.q[room, batch["action"]]
        np.add.at(self.q, (room, batch["action"]), self.config.rate * error)
        return {"loss": float(np.square(error).mean())}

    def train(self, mode: bool = True) -> object:
        """Enable or disable exploration."""
        self.training = mode
        return self

    def record(self) -> dict[str, float]:
        """Return metrics about acting."""
        return {"exploration_rate": self.config.epsilon}

    def model_info(self) -> ModelInfo:
        """Return a copy, which later updates do not change."""
        return ModelInfo(params={"q": self.q.copy()})

    def sync_model(self, info: ModelInfo) -> None:
        """Load a table from another agent, if its shape matches."""
        if wrong := self._mismatch(info.params):
            raise ConfigError(wrong)
        self.q = info.params["q"].copy()

    def state(self) -> Params:
        """Return everything that a checkpoint must contain."""
        return {"q": self.q.copy()}

    def load_state(self, state: Params) -> None:
        """Load the table from a checkpoint, if its shape matches."""
        if wrong := self._mismatch(state):
            raise CheckpointError(wrong)
        self.q = state["q"].copy()

    def _mismatch(self, arrays: Params) -> str:
        shapes = {name: array.shape for name, array in arrays.items()}
        return "" if shapes == {"q": self.q.shape} else f"no table of {self.q.shape}: {shapes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """Learning rate and exploration of the table."""

    rate: float = 0.02
    epsilon: float = 0.3

    def build(self, spec: EnvSpec, context: PolicyContext) -> Table:
        """Build the learner's table."""
        if not isinstance(spec.action, DiscreteSpec):
            raise ConfigError(f"a table needs discrete actions, got {spec.action}")
        return Table(self, spec.action.n, context.seed)

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> Table:
        """Build an actor's table."""
        return self.build(spec, context)

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Store no columns besides the transition."""
        return ()


def main(max_opt_steps: int = 5000) -> TrainResult:
    """Train until the agent takes the shortest path to the prize."""
    result = train_async(
        TableConfig(),
        make_batch(lambda: gym.wrappers.TimeLimit(Rooms(), 50), n_envs=4),
        RunConfig(actors=2),
        stop=ReachesUpperBound("eval_reward", 0.5) | MaxOptSteps(max_opt_steps),
    )
    print(result.stop_reason, result.best_score)
    return result


if __name__ == "__main__":
    main()
