"""Gradients of large batches in parts that add up, with the memory of one part."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from asyncrl.agents.networks import NetworkInput

__all__ = ["InParts"]


class InParts:
    """Passes a batch through networks in parts of about the same size.

    What a network computes inside is kept of no part. `backward` computes it again, part by part,
    and the parts' gradients add up to the whole batch's. That takes one more pass through the
    network, and is for networks that treat each row by itself: not for batch normalisation.
    """

    def __init__(self, parts: int) -> None:
        self._parts = parts

    def __call__(
        self, network: Callable[..., Tensor], *inputs: NetworkInput, dim: int = 0
    ) -> Tensor:
        """Return what the network answers to inputs (B, ...), the rows along `dim` of it."""
        if self._parts == 1:
            return network(*inputs)
        cut = zip(*(self._cut(one) for one in inputs), strict=True)
        if not torch.is_grad_enabled():
            return torch.cat([network(*part) for part in cut], dim)
        return torch.cat([_answer(network, part) for part in cut], dim)

    def _cut(self, one: NetworkInput) -> list[NetworkInput]:
        if isinstance(one, Tensor):
            return list(one.tensor_split(min(self._parts, len(one))))
        rows = len(next(iter(one.values())))
        fields = {name: field.tensor_split(min(self._parts, rows)) for name, field in one.items()}
        return [dict(zip(fields, part, strict=True)) for part in zip(*fields.values(), strict=True)]


def _answer(network: Callable[..., Tensor], part: tuple[NetworkInput, ...]) -> Tensor:
    answer: Tensor = checkpoint(network, *part, use_reentrant=False)
    return answer
