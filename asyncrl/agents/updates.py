"""What lies between a batch and an agent's equations, the same for all agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from asyncrl.agents.accelerate import Accelerated, Update
from asyncrl.agents.batch_mover import BatchMover
from asyncrl.agents.networks import NetworkInput
from asyncrl.agents.normalize import Normalized
from asyncrl.agents.torch_config import TorchConfig
from asyncrl.core.errors import ConfigError, OutOfMemory
from asyncrl.core.segment import DISCOUNTED_RETURN
from asyncrl.core.types import Array, Columns

TRANSITION_COLUMNS = ("obs", "action", "reward", "next_obs", "discount", "weight")
"""What updates of single transitions read of a batch, where it is there."""

TRAJECTORY_COLUMNS = ("obs", "action", "reward", "discount", "mask")
"""What updates of trajectories read of a batch, besides the agent's own columns."""


class Updates:
    """Optimisation steps: each moves a batch to the device and runs the agent's update on it.

    The update tells, besides its numbers, the values `q` that it has learned from and the `target`
    that it moved them to, row by row; both stay here, for `priorities`. It may tell neither.
    """

    def __init__(
        self,
        update: Update,
        config: TorchConfig,
        model: nn.Module,
        read_obs: Callable[[Tensor], NetworkInput],
        device: torch.device,
        columns: Sequence[str] = TRANSITION_COLUMNS,
        *,
        learning: Sequence[nn.Module],
    ) -> None:
        """Wrap an update during which networks that learn are in learning mode."""
        self._device = device
        self._singly = "next_obs" in columns
        self._norm = model if isinstance(model, Normalized) else None
        self._read_obs = read_obs
        self._move = BatchMover(device, (*columns, *(DISCOUNTED_RETURN,) * config.normalize_reward))
        self._run = Accelerated(update, config.accelerate, device, learning)
        self._newest: tuple[Tensor, Tensor] | None = None

    def step(self, batch: Columns, more: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Update once, from a batch and what else the update takes; return its numbers.

        Raises `ConfigError` if the batch is not of transitions where the agent learns from these,
        and `OutOfMemory` where there is too little; what was cached is then free, so that the
        run can still save a checkpoint.
        """
        if self._singly and "next_obs" not in batch:
            raise ConfigError(
                f"this agent learns from single transitions, but this batch, of {sorted(batch)}, "
                "has no next_obs; use UniformReplayConfig or PrioritizedReplayConfig as replay"
            )
        if self._norm is not None:
            self._norm.check(batch)
        try:
            data = self._move(batch)
            if more:
                data |= more
            told = self._run(data)
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(batch, self._device) from error
        if "q" in told:
            self._newest = told.pop("q"), told.pop("target")
        return told

    def inputs(self, data: Mapping[str, Tensor]) -> tuple[NetworkInput, NetworkInput, Tensor]:
        """Return observations, next observations and rewards as networks and losses take them.

        This is for the update to call: normalisation, where it is on, learns from the batch here.
        """
        obs, next_obs = self._read_obs(data["obs"]), self._read_obs(data["next_obs"])
        if self._norm is None:
            return obs, next_obs, data["reward"]
        self._norm.learn(obs, data)
        return self._norm.see(obs), self._norm.see(next_obs), self._norm.rewards(data)

    def trajectories(self, data: Mapping[str, Tensor]) -> tuple[NetworkInput, Tensor]:
        """Return observations (B, T + 1, ...) and rewards (B, T), as `inputs` does.

        Normalisation learns from the rows that are transitions.
        """
        obs = self._read_obs(data["obs"])
        if self._norm is None:
            return obs, data["reward"]
        mask = data["mask"]
        acted_on = _each(obs, lambda field: field[:, : mask.shape[1]][mask])
        self._norm.learn(acted_on, {n: c[mask] for n, c in data.items() if n == DISCOUNTED_RETURN})
        return self._norm.see(obs), self._norm.rewards(data)

    def priorities(self) -> Array:
        """Return how far each row of the newest batch was from its target."""
        if self._newest is None:
            raise ValueError("priorities are those of the newest batch, and there was none yet")
        q, target = self._newest
        errors = (q - target).abs_()
        priorities: Array = (errors if errors.ndim == 1 else errors.mean(dim=0)).cpu().numpy()
        return priorities

    def forget(self) -> None:
        """Prepare for tensors of the agent having been replaced by others."""
        self._run.forget()


def _out_of_memory(batch: Columns, device: torch.device) -> OutOfMemory:
    """Say how much was asked for, free what is only cached, and say what would help."""
    rows = len(next(iter(batch.values())))
    size = sum(column.nbytes for column in batch.values())
    left = ""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        left = f", {free / 2**30:.2f} of {total / 2**30:.2f} GiB are free there now"
    return OutOfMemory(
        f"{device} ran out of memory in an optimisation step on a batch of {rows} rows, "
        f"{size / 2**20:.1f} MiB{left}; lower trainer.batch_size, have the batch taken in parts "
        "(agent.accumulate), or compute in agent.precision=bfloat16"
    )


def _each(obs: NetworkInput, change: Callable[[Tensor], Tensor]) -> NetworkInput:
    if isinstance(obs, Tensor):
        return change(obs)
    return {name: change(field) for name, field in obs.items()}
