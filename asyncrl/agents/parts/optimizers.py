"""Optimizers: the arithmetic of torch's own, without the overhead.

For small networks, the hooks, profiling and checks of `torch.optim` take ten times as long as the
arithmetic. Creating a `torch.optim` optimizer also loads torch's compiler, which takes as long as
loading the rest of torch, and 70 MB.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from asyncrl.agents.parts.schedules import Schedule, value_at


class FastOptimizer(ABC):
    """Updates parameters from their gradients. Results equal those of torch's bit for bit.

    A learning rate that is a schedule changes where `set_rate_at` is called, before an update.
    """

    slots: ClassVar[tuple[str, ...]]
    """State per parameter: tensors of its shape, and the number `step`."""

    def __init__(
        self, params: Iterable[Tensor], learning_rate: float | Schedule, *, flat: bool = False
    ) -> None:
        """Optimize these parameters; `flat` ones are vectors of `flatten_parameters`."""
        self.params = list(params)
        self.inputs = None if flat else self.params
        """Tensors whose gradients `backward` computes; None is all that a loss depends on."""
        self.state: dict[int, dict[str, Tensor]] = {}
        """State by a parameter's position in `params`; none for one without gradients."""
        self._made_with = value_at(learning_rate, 0)
        self.learning_rate = self._made_with
        """Learning rate of the next step. It can be set in mid-run, unless there is a schedule or
        steps are captured as CUDA graphs. It is saved, see `rates`."""
        self._schedule = learning_rate if isinstance(learning_rate, Schedule) else None
        self._shown = self.learning_rate, torch.tensor(self.learning_rate)
        self._on_device: Tensor | None = None
        device = self.params[0].device
        if self._schedule and device.type != "cpu":
            # A captured graph replays constants, but reads tensors again.
            self._on_device = torch.tensor(self.learning_rate, device=device)
        self._all = list(range(len(self.params)))
        self._places: list[int] = []
        self._gathered: list[list[Tensor]] = []

    def set_rate_at(self, env_steps: int) -> float:
        """Set the learning rate from the schedule, if there is one; return it."""
        if self._schedule:
            self.learning_rate = self._schedule.at(env_steps)
            if self._on_device is not None:
                self._on_device.fill_(self.learning_rate)
        return self.learning_rate

    def metrics(self, name: str) -> dict[str, Tensor]:
        """Return the learning rate under that name."""
        rate, shown = self._shown
        if rate != self.learning_rate:
            rate, shown = self._shown = self.learning_rate, torch.tensor(self.learning_rate)
        return {name: shown}

    def clear(self) -> None:
        """Reset all gradients."""
        if self.inputs is None:
            for gradient in self.gradients():
                gradient.zero_()  # the networks' own gradients are views of it
        else:
            for param in self.params:
                param.grad = None

    def gradients(self) -> list[Tensor]:
        """Return the existing gradients; changes to them apply to the next step."""
        return [param.grad for param in self.params if param.grad is not None]

    @torch.no_grad()
    def step(self) -> None:
        """Take one step with the parameters that have a gradient."""
        params, gradients, places = self.params, self.gradients(), self._all
        if len(gradients) != len(params):
            places = [place for place in places if params[place].grad is not None]
            params = [params[place] for place in places]
        if places != self._places:
            self._gather(places)
        if places:
            self._step(params, gradients, *self._gathered)

    @abstractmethod
    def _step(self, params: list[Tensor], gradients: list[Tensor], *slots: list[Tensor]) -> None:
        """Update parameters and their state."""

    @property
    def rates(self) -> tuple[float, float] | None:
        """The initial learning rate and the one set since then; None if none was set."""
        if self._schedule or self.learning_rate == self._made_with:
            return None
        return self._made_with, self.learning_rate

    def load(
        self,
        state: Mapping[int, Mapping[str, Tensor]],
        rates: tuple[float, float] | None = None,
    ) -> None:
        """Load a copy of another optimizer's `state` and its `rates`.

        A learning rate that was set in the other counts only if both were created with the same.
        """
        if not self._schedule:
            made_with, now = rates or (self._made_with, self._made_with)
            self.learning_rate = now if made_with == self._made_with else self._made_with
        copies = {place: self.nothing(place) for place in state}
        for place, remembered in state.items():
            for name, value in remembered.items():
                copies[place][name].copy_(value)
        self.state = copies
        self._places = []

    def _gather(self, places: list[int]) -> None:
        """Arrange the state of these parameters for the arithmetic."""
        for place in places:
            if place not in self.state:
                self.state[place] = self.nothing(place)
        self._gathered = [[self.state[place][name] for place in places] for name in self.slots]
        self._places = places

    def nothing(self, place: int) -> dict[str, Tensor]:
        """Return the initial state of a parameter."""
        param = self.params[place]
        return {
            name: torch.zeros((), device=param.device, dtype=torch.float32)
            if name == "step"
            else torch.zeros_like(param)
            for name in self.slots
        }


class FusedAdam(FastOptimizer):
    """`torch.optim.Adam(fused=True)` in two operations."""

    slots = ("exp_avg", "exp_avg_sq", "step")

    def __init__(
        self,
        params: Iterable[Tensor],
        learning_rate: float | Schedule,
        eps: float = 1e-8,
        beta1: float = 0.9,
        *,
        flat: bool = False,
    ) -> None:
        super().__init__(params, learning_rate, flat=flat)
        self.eps = eps
        self.beta1 = beta1

    def _gather(self, places: list[int]) -> None:
        super()._gather(places)
        if places:
            # In one tensor, so that one operation increments all of them.
            self._steps = torch.stack(self._gathered[-1])
            self._gathered[-1] = list(self._steps.unbind())
            for place, step in zip(places, self._gathered[-1], strict=True):
                self.state[place]["step"] = step

    def _step(self, params: list[Tensor], gradients: list[Tensor], *slots: list[Tensor]) -> None:
        averages, squares, steps = slots
        self._steps.add_(1)
        torch._fused_adam_(
            params,
            gradients,
            averages,
            squares,
            [],
            steps,
            lr=self.learning_rate if self._on_device is None else self._on_device,
            beta1=self.beta1,
            beta2=0.999,
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )


class RMSprop(FastOptimizer):
    """`torch.optim.RMSprop(foreach=True)` in five operations. CUDA graphs cannot capture it."""

    slots = ("square_avg",)

    def __init__(
        self, params: Iterable[Tensor], learning_rate: float | Schedule, decay: float, eps: float
    ) -> None:
        super().__init__(params, learning_rate)
        self._decay = decay
        self._eps = eps

    def _step(self, params: list[Tensor], gradients: list[Tensor], *slots: list[Tensor]) -> None:
        (squares,) = slots
        torch._foreach_mul_(squares, self._decay)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - self._decay)
        sizes = torch._foreach_sqrt(squares)  # noqa: SLF001  # no other name for it
        torch._foreach_add_(sizes, self._eps)
        torch._foreach_addcdiv_(params, gradients, sizes, value=-self.learning_rate)
