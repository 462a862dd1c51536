"""Cores unroll as they step, memories are emptied where they should be and nowhere else."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asyncrl.agents.parts.choosing import CoreKind, Memories
from asyncrl.agents.parts.recurrent import RecurrentCore
from asyncrl.agents.parts.torch_agent import seeded

CPU = torch.device("cpu")
N_INPUTS, N_UNITS = 3, 5

every_kind = pytest.mark.parametrize("kind", get_args(CoreKind))


def core(kind: CoreKind) -> RecurrentCore:
    with seeded(0):
        return RecurrentCore(kind, N_INPUTS, N_UNITS)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stepped(
    of: RecurrentCore, features: Tensor, memory: Tensor, begins: Tensor
) -> tuple[Tensor, Tensor]:
    """Unroll row by row, each environment by itself."""
    outs, lasts = [], []
    for b, rows in enumerate(features):
        now, out = memory[b : b + 1], []
        for t, row in enumerate(rows):
            now = torch.zeros_like(now) if begins[b, t] else now
            y, now = of.step(row[None], now)
            out.append(y)
        outs.append(torch.cat(out))
        lasts.append(now)
    return torch.stack(outs), torch.cat(lasts)


@every_kind
@given(
    n=st.integers(1, 4),
    length=st.integers(1, 9),
    share=st.sampled_from([0.0, 0.2, 1.0]),
    seed=st.integers(0, 100),
)
@settings(max_examples=30, deadline=None)
def test_unrolls_as_it_steps(kind: CoreKind, n: int, length: int, share: float, seed: int) -> None:
    of = core(kind)
    features, memory = drawn(n, length, N_INPUTS, seed=seed), drawn(n, of.memory_size, seed=1)
    begins = torch.rand(n, length, generator=torch.Generator().manual_seed(seed)) < share
    found = of.unroll(features, memory, begins)
    assert found[0].shape == (n, length, of.n_outputs)
    for mine, expected in zip(found, stepped(of, features, memory, begins), strict=True):
        torch.testing.assert_close(mine, expected)
    if not begins.any():
        assert all(map(torch.equal, found, of.unroll(features, memory)))


@every_kind
def test_gradients_stop_where_an_episode_begins(kind: CoreKind) -> None:
    of = core(kind)
    features = drawn(2, 4, N_INPUTS).requires_grad_()
    begins = torch.zeros(2, 4, dtype=torch.bool)
    begins[0, 2] = True
    of.unroll(features, torch.zeros(2, of.memory_size), begins)[0][:, 3].sum().backward()
    assert features.grad is not None
    reached = features.grad.abs().sum(dim=2) > 0
    assert reached.tolist() == [[False, False, True, True], [True, True, True, True]]


@every_kind
def test_remembers_in_single_precision_between_layers_of_half_of_it(kind: CoreKind) -> None:
    of = core(kind)
    memory = torch.zeros(2, of.memory_size)
    with torch.autocast("cpu", torch.bfloat16):
        stepped_, unrolled = of.step(drawn(2, N_INPUTS), memory), of.unroll(drawn(2, 3, 3), memory)
    assert {x.dtype for x in (*stepped_, *unrolled)} == {torch.float32}


def test_training_and_evaluation_remember_apart() -> None:
    memories = Memories(2)
    memories.keep(np.ones((3, 2), np.float32), training=True)
    assert not memories.recall(3, training=False).any()
    memories.keep(np.full((3, 2), 2.0, np.float32), training=False)
    memories.forget(np.ones(3, np.bool_), training=False)
    assert np.array_equal(memories.recall(3, training=True), np.ones((3, 2), np.float32))
    assert not memories.recall(3, training=False).any()
