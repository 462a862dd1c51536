"""Adam in two operations, and nothing around them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from asyncrl.agents.schedules import Schedule, value_at

__all__ = ["FusedAdam"]


class FusedAdam(torch.optim.Adam):
    """Torch's fused Adam without its hooks, its profiling and its checks at each step.

    Around small networks these take ten times as long as the arithmetic. State and results are
    those of `torch.optim.Adam(fused=True)`.

    A learning rate that is a schedule changes where `follow` is called, before an update:

        learning_rate = self.optimizer.follow(self.env_steps)
        told = self._updates.step(batch)
    """

    def __init__(
        self, params: Iterable[Tensor], learning_rate: float | Schedule, eps: float = 1e-8
    ) -> None:
        self._learning_rate = learning_rate
        self._newest_rate = first = value_at(learning_rate, 0)
        super().__init__(params, lr=first, eps=eps, fused=True)
        self._moving: list[Tensor] = []
        self._slots: list[list[Tensor]] = []
        self._rate: Tensor | None = None
        device = self.param_groups[0]["params"][0].device
        if isinstance(learning_rate, Schedule) and device.type != "cpu":
            # A graph that has been recorded repeats numbers, but reads tensors anew.
            self._rate = torch.tensor(first, device=device)
            self.param_groups[0]["lr"] = self._rate

    def follow(self, env_steps: int) -> float:
        """Take the learning rate that the schedule, if there is one, has by now; return it."""
        self._newest_rate = value = value_at(self._learning_rate, env_steps)
        if self._rate is not None:
            self._rate.fill_(value)
        elif isinstance(self._learning_rate, Schedule):
            self.param_groups[0]["lr"] = value
        return value

    def tell(self, name: str) -> dict[str, Tensor]:
        """Return the learning rate under that name, if it is one that changes."""
        is_schedule = isinstance(self._learning_rate, Schedule)
        return {name: torch.tensor(self._newest_rate)} if is_schedule else {}

    @torch.no_grad()
    def descend(self) -> None:
        """Take one step; a parameter must have a gradient at each, or never."""
        group = self.param_groups[0]
        if not self._slots:
            self.step()  # makes the state if there is none
            self._moving = [param for param in group["params"] if param in self.state]
            states = [self.state[param] for param in self._moving]
            names = ("exp_avg", "exp_avg_sq", "step")
            self._slots = [[state[name] for state in states] for name in names]
            return
        averages, squares, steps = self._slots
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            self._moving,
            [param.grad for param in self._moving],  # type: ignore[misc]  # none is None
            averages,
            squares,
            [],
            steps,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state, whose tensors replace those of this one."""
        super().load_state_dict(state_dict)
        self._slots = []
        if self._rate is not None:
            self.param_groups[0]["lr"] = self._rate
