"""Optimizers: the arithmetic of torch's own, without the overhead.

For small networks, the hooks, profiling and checks of `torch.optim` take ten times as long as the
arithmetic. Creating a `torch.optim` optimizer also loads torch's compiler, which takes as long as
loading the rest of torch, and 70 MB.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from asyncrl.agents.parts.schedules import Schedule, value_at


class FastOptimizer(ABC):
    """Updates parameters from their gradients. Results equal those of torch's bit for bit.

    A learning rate that is a schedule changes where `set_rate_at` is called, before an update.
    """

    slots: ClassVar[tuple[str, ...]]
    """State per parameter: tensors of its shape, and the number `step`."""

    def __init__(self, params: Iterable[Tensor], learning_rate: float | Schedule) -> None:
        """Optimize these parameters, or vectors of `flatten_parameters`."""
        self.params = list(params)
        self.leaves = [leaf for param in self.params for leaf in leaves_of(param)]
        """Parameters that compiled updates compute gradients of: no gradient flows from views of a
        flat vector to it."""
        self.inputs = self.params if self.leaves[0] is self.params[0] else None
        """Tensors whose gradients `backward` computes; None is all that a loss depends on."""
        self.state: dict[int, dict[str, Tensor]] = {}
        """State by a parameter's position in `params`; none for one without gradients."""
        self._made_with = value_at(learning_rate, 0)
        self._learning_rate = self._made_with
        self._schedule = learning_rate if isinstance(learning_rate, Schedule) else None
        self._by_leaf: list[list[Tensor]] = []
        device = self.params[0].device
        # Captured and compiled graphs repeat constants, but read tensors again.
        self._rate = torch.tensor(self.learning_rate, device=device)
        self._reads_rate = self._schedule is not None and device.type != "cpu"
        self._all = list(range(len(self.params)))
        self._places: list[int] = []
        self._gathered: list[list[Tensor]] = []

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step. It can be set in mid-run, unless there is a schedule.

        It is saved, see `rates`.
        """
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._learning_rate = rate
        if self._reads_rate:
            self._rate.fill_(rate)

    def set_rate_at(self, env_steps: int) -> float:
        """Set the learning rate from the schedule, if there is one; return it."""
        if self._schedule:
            self.learning_rate = self._schedule.at(env_steps)
        return self.learning_rate

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

    @torch.no_grad()
    def prepare_graph(self) -> None:
        """Create all state, and views of it for each of `leaves`, for `step_in_graph`."""
        self._gather(self._all)
        self._reads_rate = True
        self._rate.fill_(self.learning_rate)
        owned = [leaves_of(param) for param in self.params]
        self._owners = [place for place, leaves in enumerate(owned) for _ in leaves]
        held = dict(zip(self.slots, self._gathered, strict=True))
        held.pop("step", None)
        self._by_leaf = [[leaf if leaf.ndim else leaf.view(1) for leaf in self.leaves]]
        self._by_leaf += [
            [
                view
                for whole, leaves in zip(wholes, owned, strict=True)
                for view in _views(whole, leaves)
            ]
            for wholes in held.values()
        ]

    @torch.no_grad()
    def step_in_graph(self, gradients: Sequence[Tensor]) -> None:
        """Take one step by operations that compile, with the gradients of `leaves`."""
        self._step(self._by_leaf[0], [*gradients], *self._by_leaf[1:])

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
        if self._by_leaf:
            self.prepare_graph()

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


_BETA2 = 0.999
_PLAIN: Mapping[str, Any] = {"weight_decay": 0.0, "amsgrad": False, "maximize": False}


class FusedAdam(FastOptimizer):
    """`torch.optim.Adam(fused=True)` in two operations."""

    slots = ("exp_avg", "exp_avg_sq", "step")

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

    def _gather(self, places: list[int]) -> None:
        super()._gather(places)
        if places:
            # In one tensor, so that one operation increments all of them.
            self._steps = torch.stack(self._gathered[-1])
            self._gathered[-1] = list(self._steps.unbind())
            for place, step in zip(places, self._gathered[-1], strict=True):
                self.state[place]["step"] = step

    def _step(self, params: list[Tensor], gradients: list[Tensor], *slots: list[Tensor]) -> None:
        self._steps.add_(1)
        if torch.compiler.is_compiling():
            self._step_apart(params, gradients, *slots)
            return
        averages, squares, steps = slots
        rate = self._rate if self._reads_rate else self.learning_rate
        others = {"beta1": self.beta1, "beta2": _BETA2, "eps": self.eps, **_PLAIN}
        torch._fused_adam_(params, gradients, averages, squares, [], steps, lr=rate, **others)

    def _step_apart(self, *pieces: list[Tensor]) -> None:
        # lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
        # Powers in double precision, as in torch's Adam; as exponentials they are compiled outside
        # of the loops over weights.
        steps = self._steps.double()
        first, second = (
            1.0 - torch.exp(steps * math.log(beta or 1e-300)) for beta in (self.beta1, _BETA2)
        )
        sizes, roots = (self._rate / first).float(), second.sqrt().float()
        for param, gradient, average, square, owner in zip(*pieces, self._owners, strict=True):
            average.lerp_(gradient, 1.0 - self.beta1)
            square.mul_(_BETA2).addcmul_(gradient, gradient, value=1.0 - _BETA2)
            param.sub_(sizes[owner] * average / (square.sqrt() / roots[owner] + self.eps))


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


def clip_gradients(gradients: list[Tensor], max_norm: float) -> Tensor:
    """Scale gradients down in place to a joint norm of `max_norm`; return the norm before.

    Smaller gradients are unchanged; so are all if `max_norm` is 0.
    """
    if not gradients:
        return torch.zeros(())
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
