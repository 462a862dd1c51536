"""Settings that torch agents share: what is refused, and what they turn into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.agents.parts.torch_config import TorchConfig
from asyncrl.core.env import BoxSpec
from asyncrl.core.errors import ConfigError

CPU = torch.device("cpu")
BOX = BoxSpec((2,), "float32", np.zeros(2, np.float32), np.ones(2, np.float32))


def test_parts_are_refused_where_an_algorithm_knows_none() -> None:
    with pytest.raises(ConfigError, match=r"agent\.accumulate=2 has no effect on TorchConfig"):
        TorchConfig(accumulate=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedForward(TorchConfig):
    can_accumulate: ClassVar[bool] = True


def test_parts_of_a_batch_are_computed_where_an_algorithm_can() -> None:
    assert ChunkedForward(accumulate=4).accumulate == 4
    with pytest.raises(ConfigError, match=r"which agent\.accelerate='compile' would undo"):
        ChunkedForward(accumulate=4, accelerate="compile")


@pytest.mark.parametrize(
    ("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)]
)
def test_matrices_are_multiplied_in_the_precision_asked_for(
    precision: Any, dtype: torch.dtype
) -> None:
    layer = nn.Linear(2, 2)
    with TorchConfig(precision=precision).precision_on(CPU)():
        assert layer(torch.ones(1, 2)).dtype == dtype
    assert layer.weight.dtype == torch.float32
