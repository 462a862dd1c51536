"""Last layers, which answer in full precision even where a network computes in less."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def exactly(head: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
    """Return what a head answers, in float32 where the network computes in less.

    One in double precision keeps it, as torch lets all layers do that are of more than float32.
    Errors and advantages are small differences of values, and bfloat16 tells 1 from 1.004 at best,
    200 from 201.
    """
    kind = features.device.type
    if not torch.is_autocast_enabled(kind):
        return head(features)
    with torch.autocast(kind, enabled=False):
        return head(features.to(torch.promote_types(features.dtype, torch.float32)))


class Headed(nn.Sequential):
    """Layers one after another, of which the last one is a head."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what the last layer answers."""
        *body, head = self
        for layer in body:
            x = layer(x)
        return exactly(head, x)
