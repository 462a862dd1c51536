"""Products that are recorded are those of the work, and they are computed alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from asyncrl.agents.parts import products
from asyncrl.agents.parts.accelerated import matmul_precision, precision_now
from asyncrl.agents.parts.critics import BatchedCritics
from asyncrl.agents.parts.networks import MLP
from asyncrl.agents.parts.products import matrix_products


def operations(work: Callable[[], None]) -> Counter[str]:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as seen:
        work()
    kinds = ("aten::mm", "aten::bmm", "aten::convolution", "aten::convolution_backward")
    return Counter(event.name for event in seen.events() if event.name in kinds)


def test_layers_forward_and_backward_are_products() -> None:
    network, obs = MLP(3, (8, 8), 2), torch.randn(5, 3)
    critics, action = BatchedCritics(2, 4, (8,)), torch.randn(5, 1)

    def work() -> None:
        (network(obs).sum() + critics(obs, action).sum()).backward()

    # Three layers, and all of their gradients but that of the observations.
    assert operations(matrix_products(work)) == {"aten::mm": 3 + 5, "aten::bmm": 1 + 1}


def test_work_that_differs_between_repetitions_is_computed_as_often() -> None:
    layers, x, turns = (nn.Linear(4, 4), nn.Linear(4, 2)), torch.randn(3, 4), count()
    alone = matrix_products(lambda: [layer(x) for layer in layers[: 1 + next(turns) % 2]], 4)
    assert operations(alone) == {"aten::mm": 2 + 4}


def test_products_are_computed_by_the_library_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, x = list[str](), torch.ones(2, 2)

    def multiply(*operands: Tensor, out: Tensor | None = None) -> Tensor:
        seen.append(precision_now())
        return torch.mm(*operands, out=out)

    monkeypatch.setitem(products._MULTIPLY, torch.ops.aten.mm.default, multiply)
    with matmul_precision("bf16"):
        compute = matrix_products(lambda: x @ x)
    seen.clear()
    compute()
    assert seen == ["bf16"]
