"""Columns on a device: batches are those of the host's ring, and no place is used before its time.

What needs no GPU is done with torch's tensors in the host's memory, which take the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import ColumnSpec, SegmentSchema, make_schema
from asyncrl.core.types import Array
from asyncrl.replay import on_device as _on_device
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.sequences import PrioritizedSequenceReplayConfig, SequenceReplayConfig
from asyncrl.replay.uniform import UniformReplay, UniformReplayConfig
from tests.replay.segments import segment, streams
from tests.support.streams import make_outbox, play, schema

LENGTH = 4
SEQUENCES: dict[str, Any] = {"sequence_length": 3, "burn_in": 1, "stride": 2}
KINDS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "uniform": (UniformReplayConfig, {"n_step": 3}),
    "prioritized": (PrioritizedReplayConfig, {"n_step": 2}),
    "sequences": (SequenceReplayConfig, SEQUENCES),
    "prioritized sequences": (PrioritizedSequenceReplayConfig, SEQUENCES),
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

every_kind = pytest.mark.parametrize("kind", KINDS)
every_device = pytest.mark.parametrize("device", DEVICES)


def build(kind: str, device: str, *, capacity: int = 24, frame_stack: int = 1) -> Any:
    make, more = KINDS[kind]
    config = make(capacity=capacity, device=device, **more)
    return config.build(schema(LENGTH, config.lookahead, frame_stack), 0)


def bits(batch: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return the names, types and bytes of a batch, on any device."""
    arrays = {name: torch.as_tensor(column).numpy(force=True) for name, column in batch.items()}
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in arrays.items()}


def images(lookahead: int = 1) -> SegmentSchema:
    columns = [
        ColumnSpec("obs", "uint8", (3, 5)),
        ColumnSpec("action", "float32", (2,)),
        ColumnSpec("reward", "float32"),
        ColumnSpec("flags", "uint8"),
        ColumnSpec("logits", "float16", (33,)),
    ]
    return make_schema(columns, length=LENGTH, lookahead=lookahead)


def filled_images(device: str) -> tuple[UniformReplay, dict[str, Array]]:
    buffer = UniformReplayConfig(capacity=2 * LENGTH, device=device).build(images(), 0)
    columns, rows = segment(images())
    columns["obs"][:] = np.arange(images().rows)[:, None, None]
    columns["logits"][:] = np.arange(images().rows)[:, None]
    columns["action"][:] = np.arange(images().rows)[:, None]
    buffer.push(columns, rows)
    return buffer, columns


# --- the same as on the host ----------------------------------------------------------------------


@every_device
@every_kind
@pytest.mark.parametrize("frame_stack", [1, 3])
@given(ends=streams(), times=st.integers(1, 4))
@settings(max_examples=6, deadline=None)
def test_batches_are_those_of_the_host_bit_by_bit(
    device: str, kind: str, frame_stack: int, ends: list[list[str]], times: int
) -> None:
    there, here = (
        build(kind, device, frame_stack=frame_stack),
        build(kind, "host", frame_stack=frame_stack),
    )
    outbox = make_outbox(len(ends), LENGTH, KINDS[kind][0](**KINDS[kind][1]).lookahead, frame_stack)
    for message in play([env * times for env in ends], outbox)[1]:
        pushed = [buffer.push(message.columns, message.rows) for buffer in (there, here)]
        assert pushed[0] == pushed[1]
        if not len(here):
            continue
        found, expected = there.sample(9), here.sample(9)
        assert bits(found) == bits(expected)
        if "index" in expected:
            for buffer in (there, here):
                buffer.update_priorities(expected["index"], np.arange(9) / 2)
    assert there.nbytes == here.nbytes
    assert bits(there.state()) == bits(here.state()), "either may be loaded by the other"


# --- what is where --------------------------------------------------------------------------------


@every_device
def test_wide_columns_are_tensors_there_and_narrow_ones_arrays(device: str) -> None:
    buffer, _ = filled_images(device)
    batch: Mapping[str, Any] = buffer.sample(6)
    wide = {name: c for name, c in batch.items() if isinstance(c, torch.Tensor)}
    assert {name: (c.dtype, tuple(c.shape)) for name, c in wide.items()} == {
        "obs": (torch.uint8, (6, 3, 5)),
        "next_obs": (torch.uint8, (6, 3, 5)),
        "logits": (torch.float16, (6, 33)),
    }
    assert all(column.device.type == device for column in wide.values())
    narrow = set(batch) - set(wide)
    assert narrow == {"action", "reward", "discount"}
    assert all(isinstance(batch[name], np.ndarray) for name in narrow)
    logits = wide["logits"][:, 0].float().numpy(force=True)
    np.testing.assert_array_equal(logits, batch["action"][:, 0])


# --- threads and streams --------------------------------------------------------------------------


class FakeStream:
    """A queue of a GPU that knows what is done before whatever is ordered next."""

    def __init__(self, *_: object) -> None:
        self.before: set[int] = set()

    def wait_event(self, event: FakeEvent) -> None:
        self.before |= event.before


class FakeEvent:
    def __init__(self) -> None:
        self.before: set[int] = set()

    def record(self, stream: FakeStream) -> None:
        self.before = set(stream.before)


@given(st.lists(st.sampled_from(["write", "first reader", "second reader"]), max_size=30))
def test_each_stream_waits_for_all_earlier_work_of_the_other(turns: list[str]) -> None:
    readers = {"first reader": FakeStream(), "second reader": FakeStream()}
    current = readers["first reader"]
    current.before.add(-1)  # the zeros
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "Stream", FakeStream)
        patch.setattr(torch.cuda, "Event", FakeEvent)
        patch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        patch.setattr(torch.cuda, "current_stream", lambda _: current)
        order = _on_device._Order(torch.device("cuda:0"))
        accesses: dict[str, set[int]] = {"write": {-1}, "read": {-1}}
        for number, turn in enumerate(turns):
            current = readers.get(turn, current)
            what, other = ("write", "read") if turn == "write" else ("read", "write")
            with order.writing() if what == "write" else order.reading():
                stream: Any = order._writes if what == "write" else current
                assert accesses[other] <= stream.before
                stream.before.add(number)
            accesses[what].add(number)


@pytest.mark.gpu
def test_a_gpu_that_is_behind_reads_what_was_stored_at_the_call() -> None:
    buffer = UniformReplayConfig(capacity=LENGTH, device="cuda").build(images(), 0)
    busy = torch.randn(4096, 4096, device="cuda")
    taken = []
    for number in range(40):
        columns, rows = segment(images())
        columns["obs"][:] = number
        buffer.push(columns, rows)
        for _ in range(5):
            busy = busy @ busy * 1e-3  # keeps the device behind the host
        taken.append(buffer.sample(16)["obs"])
    for number, obs in enumerate(taken):
        assert set(obs.flatten().tolist()) == {number}


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpu", "mps"])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"replay\.device must be host, .* got '{name}'"):
        UniformReplayConfig(device=name)


@pytest.mark.parametrize(("name", "count"), [("cuda", 0), ("cuda:2", 2)])
def test_gpu_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, count: int
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ConfigError, match=rf"replay\.device is '{name}', but .* sees {count} GPUs"):
        UniformReplayConfig(device=name).build(images(), 0)


def test_gpu_that_is_too_small_is_refused_before_anything_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = UniformReplayConfig(capacity=10_000, device="cuda:0")
    needed = config.wide_bytes(images())
    taken: list[object] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (needed - 1, needed))
    monkeypatch.setattr(torch, "zeros", lambda *a, **_: taken.append(a))
    with pytest.raises(ConfigError, match=r"replay\.capacity=10000 needs .* on cuda:0") as refused:
        config.build(images(), 0)
    assert f"{needed:,} bytes" in str(refused.value)
    assert "replay.device=host" in str(refused.value)
    assert not taken
