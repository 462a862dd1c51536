"""Batches on their way to a device: what shares memory, what is packed, what may be reused."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from asyncrl.agents.parts.updater import BatchMover, _StagingBuffers
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Columns

CPU = torch.device("cpu")


def batch(rows: int, seed: int = 0) -> Columns:
    random = np.random.default_rng(seed)
    return {
        "obs": random.normal(size=(rows, 3)).astype(np.float32),
        "pixels": random.integers(256, size=(rows, 2, 5), dtype=np.uint8),
        "action": random.integers(9, size=rows),
        "done": random.random(rows) < 0.5,
        "reward": random.normal(size=rows),
    }


def test_tensors_on_a_cpu_share_the_batch_memory() -> None:
    columns = batch(4)
    tensors = BatchMover(CPU, list(columns))(columns)
    columns["reward"][1] = 5.0
    assert tensors["reward"][1] == 5.0
    assert tensors["action"].dtype == torch.int64


def test_columns_that_are_there_already_are_passed_on() -> None:
    columns = batch(4)
    there = torch.ones(4, 3)
    tensors = BatchMover(CPU, ["reward", "obs", "missing"])({**columns, "obs": there})
    assert tensors["obs"] is there
    assert np.shares_memory(tensors["reward"].numpy(), columns["reward"])
    assert set(tensors) == {"reward", "obs"}


def test_columns_on_another_device_are_refused() -> None:
    elsewhere = {**batch(4), "obs": torch.ones(4, 3, device="meta")}
    with pytest.raises(ConfigError, match=r"stores obs on meta .* computes on cpu; .* or to host"):
        BatchMover(CPU, ["obs"])(elsewhere)
    assert "obs" not in BatchMover(CPU, ["reward"])(elsewhere), "no agent asked for it"


class Nothing:
    """A stream, or an event on one, of a device that is never busy."""

    def __init__(self, *_: object) -> None: ...

    record = wait_event = synchronize = __init__


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Let lanes be made without a GPU; return how often all of it was waited for."""
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "Stream", Nothing)
    monkeypatch.setattr(torch.cuda, "Event", Nothing)
    monkeypatch.setattr(torch.cuda, "current_stream", Nothing)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    return waited


def test_a_batch_stays_while_the_next_is_copied_and_only_larger_ones_take_new_buffers(
    waits: list[object],
) -> None:
    lanes = _StagingBuffers(CPU)
    for turn, (rows, allocations) in enumerate([(8, 1), (5, 1), (8, 1), (1, 1), (9, 2), (40, 3)]):
        columns = batch(rows, seed=turn)
        before = lanes.move(columns)
        assert len(waits) == allocations
        lanes.move(batch(1, seed=100 + turn))
        assert all(np.array_equal(before[name].numpy(), columns[name]) for name in columns)


@pytest.mark.gpu
def test_batches_arrive_on_a_gpu_whatever_their_form() -> None:
    device = torch.device("cuda")
    move = BatchMover(device, list(batch(1)))
    for turn, rows in enumerate([8, 8, 8, 5, 8]):
        columns = batch(rows, seed=turn)
        for name, tensor in move(columns).items():
            assert tensor.is_cuda
            assert np.array_equal(tensor.cpu().numpy(), columns[name])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_columns_on_the_gpu_stay_beside_those_that_arrive(name: str) -> None:
    columns = batch(4)
    there = torch.ones(4, 3, device="cuda")
    tensors = BatchMover(torch.device(name), ["obs", "reward"])({**columns, "obs": there})
    assert tensors["obs"] is there
    assert np.array_equal(tensors["reward"].cpu().numpy(), columns["reward"])


@pytest.mark.gpu
def test_a_batch_that_the_device_still_reads_is_not_overwritten() -> None:
    move = BatchMover(torch.device("cuda"), ["obs"])
    busy = torch.randn(4096, 4096, device="cuda")
    sums = []
    for turn in range(20):
        tensors = move({"obs": np.full(100_000, turn, np.float32)})
        for _ in range(5):
            busy = busy @ busy * 1e-3  # keeps the device behind the host
        sums.append(tensors["obs"].sum())
    assert [float(total) for total in sums] == [100_000.0 * turn for turn in range(20)]
