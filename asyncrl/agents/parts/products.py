"""The matrix products of some work, computed alone: the most that its speed can reach.

Independent of agents: it records which products torch is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from asyncrl.agents.parts.accelerated import matmul_precision, precision_now

_aten = torch.ops.aten
_MULTIPLY: dict[object, Callable[..., Tensor]] = {
    _aten.mm.default: torch.mm,
    _aten.addmm.default: torch.mm,
    _aten.addmm_.default: torch.mm,
    _aten.bmm.default: torch.bmm,
    _aten.baddbmm.default: torch.bmm,
    _aten.baddbmm_.default: torch.bmm,
}
"""Operation -> the product in it."""

_CONVOLVE = {_aten.convolution.default, _aten.convolution_backward.default}


def matrix_products(work: Callable[[], object], times: int = 1) -> Callable[[], None]:
    """Do the work some times; return a function that computes its products alone, in their order.

    Products are those of matrices and convolutions, forward and backward, of the same shapes and
    memory layouts, by the same library. Operands are random, and nothing is added. Products with a
    vector are not counted: memory limits them. Products inside other operations, such as those of
    recurrent layers, are not seen, nor is compiled work.
    """
    with _Recorder() as recorder:
        for _ in range(times):
            recorder.begin()
            work()
    products = recorder.products

    def compute() -> None:
        with matmul_precision(recorder.precision):
            for product in products:
                product()

    return compute


class _Recorder(TorchDispatchMode):
    """Collects products while it is entered; a repetition uses the same memory again."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.products: list[Callable[[], object]] = []
        self.precision = precision_now()
        """The setting with which matrices were multiplied; it also chooses the library."""
        self._made: dict[object, list[Tensor]] = {}
        self._seen: Counter[object] = Counter()
        self._replayed: dict[object, Callable[[], object]] = {}

    def begin(self) -> None:
        """Begin a repetition."""
        self._seen.clear()

    def __torch_dispatch__(  # torch's name
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func in _MULTIPLY:
            operands = [arg for arg in args if isinstance(arg, Tensor)][-2:]
            if all(min(operand.shape[-2:]) > 1 for operand in operands):
                self.precision = precision_now()
                self._add(_MULTIPLY[func], operands)
        elif func in _CONVOLVE:
            self._add(func, args)
        return func(*args, **(kwargs or {}))

    def _add(self, multiply: Callable[..., Any], args: Sequence[object]) -> None:
        operands = [self._placeholder(arg) for arg in args]
        product = multiply, *map(id, operands)
        if product not in self._replayed:
            self._replayed[product] = _replayed(multiply, operands)
        self.products.append(self._replayed[product])

    def _placeholder(self, arg: object) -> object:
        """Return a random tensor of the same layout, and anything else as it is."""
        if not isinstance(arg, Tensor):
            return arg
        layout = arg.shape, arg.stride(), arg.dtype
        made, place = self._made.setdefault(layout, []), self._seen[layout]
        self._seen[layout] += 1
        if place == len(made):
            made.append(_random_like(arg))
        return made[place]


def _random_like(arg: Tensor) -> Tensor:
    reach = sum((size - 1) * step for size, step in zip(arg.shape, arg.stride(), strict=True))
    values = torch.randn(reach + 1, device=arg.device).to(arg.dtype)
    return values.as_strided(arg.shape, arg.stride())


def _replayed(multiply: Callable[..., Any], operands: list[object]) -> Callable[[], object]:
    if multiply in _CONVOLVE:
        return lambda: multiply(*operands)
    out = multiply(*operands)
    return lambda: multiply(*operands, out=out)
