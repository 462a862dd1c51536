"""A policy that draws its actions, tells how likely each was, and may remember earlier rows.

Beside each row stand the columns that an agent needs to learn from it later on: `log_prob`, the
action head's own, and `memory`, what was remembered before it.
"""

from __future__ import annotations

import numpy as np
import torch

from asyncrl.agents._policy_value import PolicyValueNet
from asyncrl.agents.networks import observation_reader
from asyncrl.agents.normalize import Normalized
from asyncrl.agents.recurrent import Memories
from asyncrl.agents.torch_agent import TorchPolicy
from asyncrl.agents.torch_config import TorchConfig
from asyncrl.agents.updates import TRAJECTORY_COLUMNS
from asyncrl.core.agent import Act, PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.types import Array, BoolArray, Columns

LOG_PROB = "log_prob"
"""Column of the logarithms of the probabilities, or densities, of what was drawn."""

MEMORY = "memory"
"""Column of what was remembered before a row; a start column of trajectories."""


class StochasticPolicy(TorchPolicy):
    """Acts by a network of policy and values."""

    def __init__(
        self,
        net: PolicyValueNet,
        config: TorchConfig,
        spec: EnvSpec,
        context: PolicyContext,
        device: torch.device,
    ) -> None:
        super().__init__(config.with_norms(net, spec.observation), device)
        self.read_obs = observation_reader(spec.observation)
        self.random = np.random.default_rng(context.seed)
        self.net = net
        self._memories = Memories(net.memory_size, device)

    def act(self, obs: Array) -> Act:
        """Draw actions in training; take the likeliest ones otherwise."""
        memory = self._memories.recall(len(obs), training=self.training)
        with torch.inference_mode():
            seen = self.read_obs(torch.from_numpy(obs).to(self.device))
            if isinstance(self.model, Normalized):
                seen = self.model.see(seen)
            outputs, after = self.net.step(seen, memory)
        if self.net.memory_size:
            self._memories.keep(after, training=self.training)
        if not self.training:
            return Act(self.net.head.mode(outputs))
        self.env_steps += len(obs)
        drawn = self.net.head.sample(outputs, self.random)
        extras = {LOG_PROB: drawn.log_prob, **drawn.extras}
        if self.net.memory_size:
            extras[MEMORY] = memory.cpu().numpy()
        return Act(drawn.action, extras)

    def forget(self, where: BoolArray) -> None:
        """Empty the memory of environments in which an episode begins."""
        self._memories.forget(where, training=self.training)


def own_columns(net: PolicyValueNet) -> tuple[ColumnSpec, ...]:
    """Return the columns that a policy with such a network adds to rows."""
    remembered = net.memory_size
    memory = (ColumnSpec(MEMORY, "float32", (remembered,), start=True),) if remembered else ()
    return (ColumnSpec(LOG_PROB, "float32"), *net.head.columns, *memory)


def read_columns(net: PolicyValueNet) -> tuple[str, ...]:
    """Return the columns of a batch that an agent with such a network reads."""
    return tuple(dict.fromkeys((*TRAJECTORY_COLUMNS, LOG_PROB, net.head.column, MEMORY)))


def check_batch(batch: Columns, net: PolicyValueNet, algorithm: str) -> None:
    """Refuse what another kind of replay hands over."""
    if missing := {"mask", LOG_PROB} - set(batch):
        raise ConfigError(
            f"{algorithm} learns from trajectories, each once, but this batch has no "
            f"{sorted(missing)}; use TrajectoryQueueConfig as replay"
        )
    if net.memory_size and batch[MEMORY].ndim != 2:
        raise ConfigError(
            f"{algorithm} with a memory needs the one that each trajectory starts from, but this "
            f"batch has memories of shape {batch[MEMORY].shape}; set replay.start_columns to "
            f'("{MEMORY}",)'
        )
