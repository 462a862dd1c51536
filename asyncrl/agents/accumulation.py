"""Gradients of large batches in parts that add up, with the memory of one part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from asyncrl.agents.networks import NetworkInput

Answer = TypeVar("Answer", Tensor, tuple[Tensor, Tensor])
"""One tensor, or two."""


class InParts:
    """Passes a batch through networks in parts of about the same size.

    What a network computes inside is kept of no part. `backward` computes it again, part by part,
    and the parts' gradients add up to the whole batch's. That takes one more pass through the
    network, and is for networks that treat each row by itself: not for batch normalisation.
    """

    def __init__(self, parts: int) -> None:
        self._parts = parts

    def __call__(
        self, network: Callable[..., Answer], *inputs: NetworkInput, dim: int = 0
    ) -> Answer:
        """Return what the network answers to inputs (B, ...), the rows along `dim` of it."""
        if self._parts == 1:
            return network(*inputs)
        cut = zip(*(self._cut(one) for one in inputs), strict=True)
        if not torch.is_grad_enabled():
            return _joined([network(*part) for part in cut], dim)
        return _joined([_answer(network, part) for part in cut], dim)

    def _cut(self, one: NetworkInput) -> list[NetworkInput]:
        if isinstance(one, Tensor):
            return list(one.tensor_split(min(self._parts, len(one))))
        rows = len(next(iter(one.values())))
        fields = {name: field.tensor_split(min(self._parts, rows)) for name, field in one.items()}
        return [dict(zip(fields, part, strict=True)) for part in zip(*fields.values(), strict=True)]


def _answer(network: Callable[..., Answer], part: tuple[NetworkInput, ...]) -> Answer:
    answer: Answer = checkpoint(network, *part, use_reentrant=False)
    return answer


def _joined(answers: list[Answer], dim: int) -> Answer:
    if isinstance(answers[0], Tensor):
        return torch.cat(answers, dim)
    ones, others = zip(*answers, strict=True)
    return torch.cat(ones, dim), torch.cat(others, dim)
