"""Optimizers: the arithmetic of torch's own, without the overhead.

For small networks, the hooks, profiling and checks of `torch.optim` take ten times as long as the
arithmetic. Creating a `torch.optim` optimizer also loads torch's compiler, which takes as long as
loading the rest of torch, and 70 MB.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from asyncrl.agents.parts.schedules import Schedule, value_at


class FastOptimizer(ABC):
    """Updates parameters from their gradients. Results equal those of torch's bit for bit.

    A learning rate that is a schedule changes where `set_rate_at` is called, before an update.
    """

    slots: ClassVar[tuple[str, ...]]
    """Names of the moments, tensors of a parameter's shape."""

    def __init__(self, params: Iterable[Tensor], learning_rate: float | Schedule) -> None:
        """Optimize these parameters, or vectors of `flatten_parameters`."""
        self.params = list(params)
        self.leaves = [leaf for param in self.params for leaf in leaves_of(param)]
        """Parameters that losses depend on: no gradient flows from views of a flat vector to it."""
        self._flat = self.leaves[0] is not self.params[0]
        self.moments = [[torch.zeros_like(p) for p in self.params] for _ in self.slots]
        """Of each slot, those of all parameters."""
        self._by_leaf = self._views_by_leaf()
        """Parameters and moments as `leaves` have them, for compiled updates."""
        self.schedule = learning_rate if isinstance(learning_rate, Schedule) else None
        self._made_with = value_at(learning_rate, 0)
        # Captured and compiled graphs repeat constants, but read tensors again.
        self._rate = torch.tensor(self._made_with, device=self.params[0].device)
        self.learning_rate = self._made_with

    @torch.no_grad()
    def _views_by_leaf(self) -> list[list[Tensor]]:
        owned = [leaves_of(param) for param in self.params]
        moments = [
            [view for pair in zip(slot, owned, strict=True) for view in _views(*pair)]
            for slot in self.moments
        ]
        return [[leaf if leaf.ndim else leaf.view(1) for leaf in self.leaves], *moments]

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step. It can be set in mid-run, unless there is a schedule."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._learning_rate = rate
        self.shown_rate = torch.tensor(rate)
        """The learning rate, as a number to record."""
        self._rate.fill_(rate)

    def set_rate_at(self, env_steps: int) -> float:
        """Set the learning rate from the schedule, if there is one; return it."""
        if self.schedule:
            self.learning_rate = self.schedule.at(env_steps)
        return self.learning_rate

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Return a loss's gradients of all parameters, for `step`; in compiled updates of `leaves`.

        They are zero where the loss does not depend on a parameter.
        """
        if torch.compiler.is_compiling():
            of_leaves = torch.autograd.grad(
                loss, self.leaves, allow_unused=True, materialize_grads=True
            )
            return [*of_leaves]
        for param in self.params:
            if self._flat:
                param.grad.zero_()  # type: ignore[union-attr]  # the leaves' gradients are views
            else:
                param.grad = None
        torch.autograd.backward(loss, inputs=self.leaves)
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]

    @abstractmethod
    def step(self, gradients: list[Tensor]) -> None:
        """Take one step with what `gradients` returned."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors to save: the moments, and the initial and the current rate."""
        rates = torch.tensor([self._made_with, self._learning_rate], dtype=torch.float64)
        return {"rates": rates} | {
            f"{place}/{name}": moment
            for name, slot in zip(self.slots, self.moments, strict=True)
            for place, moment in enumerate(slot)
        }

    @torch.no_grad()
    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Load a `state` of the same names and shapes, in place.

        A learning rate that was set in the other counts only if both were created with the same.
        """
        for name, value in self.state().items():
            value.copy_(saved[name])
        if not self.schedule:
            made_with, now = saved["rates"].tolist()
            self.learning_rate = now if made_with == self._made_with else self._made_with


_BETA2 = 0.999
_PLAIN: Mapping[str, Any] = {"weight_decay": 0.0, "amsgrad": False, "maximize": False}


class FusedAdam(FastOptimizer):
    """`torch.optim.Adam(fused=True)` in two operations."""

    slots = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Tensor],
        learning_rate: float | Schedule,
        eps: float = 1e-8,
        beta1: float = 0.9,
    ) -> None:
        super().__init__(params, learning_rate)
        self.eps = eps
        self.beta1 = beta1
        self._steps = torch.zeros(1, device=self.params[0].device)
        self._each_steps = [self._steps[0]] * len(self.params)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors to save."""
        return {"steps": self._steps, **super().state()}

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        """Take one step."""
        self._steps.add_(1)
        if torch.compiler.is_compiling():
            self._step_in_graph(gradients)
            return
        rate = self._learning_rate if self._rate.device.type == "cpu" else self._rate
        others = {"beta1": self.beta1, "beta2": _BETA2, "eps": self.eps, **_PLAIN}
        slots = *self.moments, [], self._each_steps
        torch._fused_adam_(self.params, gradients, *slots, lr=rate, **others)

    def _step_in_graph(self, gradients: list[Tensor]) -> None:
        # lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
        # Powers in double precision, as in torch's Adam; as exponentials they are compiled outside
        # of the loops over weights.
        steps = self._steps.double()
        first, second = (
            1.0 - torch.exp(steps * math.log(beta or 1e-300)) for beta in (self.beta1, _BETA2)
        )
        size, root = (self._rate / first).float(), second.sqrt().float()
        params, *slots = self._by_leaf
        for param, gradient, average, square in zip(params, gradients, *slots, strict=True):
            average.lerp_(gradient, 1.0 - self.beta1)
            square.mul_(_BETA2).addcmul_(gradient, gradient, value=1.0 - _BETA2)
            param.sub_(size * average / (square.sqrt() / root + self.eps))


class RMSprop(FastOptimizer):
    """`torch.optim.RMSprop(foreach=True)` in five operations. CUDA graphs cannot capture it."""

    slots = ("square_avg",)

    def __init__(
        self, params: Iterable[Tensor], learning_rate: float | Schedule, decay: float, eps: float
    ) -> None:
        super().__init__(params, learning_rate)
        self._decay = decay
        self._eps = eps

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        """Take one step."""
        in_graph = torch.compiler.is_compiling()
        params, squares = self._by_leaf if in_graph else (self.params, *self.moments)
        torch._foreach_mul_(squares, self._decay)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - self._decay)
        sizes = torch._foreach_sqrt(squares)  # noqa: SLF001  # no other name for it
        torch._foreach_add_(sizes, self._eps)
        torch._foreach_addcdiv_(params, gradients, sizes, value=-self._learning_rate)


def clip_gradients(gradients: list[Tensor], max_norm: float) -> Tensor:
    """Scale gradients down in place to a joint norm of `max_norm`; return the norm before.

    Smaller gradients are unchanged; so are all if `max_norm` is 0.
    """
    if torch.compiler.is_compiling():
        norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    elif len(gradients) == 1:
        norm = torch.linalg.vector_norm(gradients[0])
    else:
        # Like `nn.utils.get_total_norm` for tensors on one device.
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))  # noqa: SLF001
    if max_norm:
        # g <- g * min(1, max_norm / |g|)
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp_(max=1.0))
    return norm


def leaves_of(param: Tensor) -> list[Tensor]:
    """Return the parameters that a vector of `flatten_parameters` consists of, or the only one."""
    return getattr(param, "leaves", [param])


def _views(whole: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Return the parts of a parameter, or of its state, that belong to its leaves."""
    if whole.shape == leaves[0].shape:
        # torch 2.13 miscompiles in-place changes of tensors without dimensions.
        return [whole if whole.ndim else whole.view(1)]
    parts = whole.split([leaf.numel() for leaf in leaves])
    return [part.view(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
