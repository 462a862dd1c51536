"""Hostile bytes for the decoder: it says `WireError` or gives a message, and costs little."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from asyncrl.transport import wire
from asyncrl.transport import wire as header
from benchmarks.chaos import canaries
from benchmarks.chaos.hostile_messages import (
    CONSTANT_BYTES,
    EXAMPLES,
    accepted,
    bombs,
    costs,
    hostile,
)


def test_every_kind_of_message_is_an_example() -> None:
    assert {type(message) for message in EXAMPLES} == set(wire._KINDS)


@pytest.mark.fault("F22")
@pytest.mark.parametrize("seed", range(4))
def test_hostile_messages_raise_nothing_but_wire_errors(seed: int) -> None:
    chance = random.Random(seed)
    outcomes = [accepted(hostile(chance)) for _ in range(5_000)]
    assert 0 < sum(outcomes) < len(outcomes) / 2, "some changes do no harm, most do"


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.fault("F23")
@pytest.mark.parametrize("frames", [pytest.param(bomb, id=name) for name, bomb in bombs()])
def test_no_message_takes_much_more_memory_than_it_has_bytes(frames: list[bytes]) -> None:
    size = sum(map(len, frames))
    assert costs(frames) <= 8 * size + CONSTANT_BYTES


@pytest.mark.fault("F23")
def test_hostile_messages_take_little_memory() -> None:
    chance = random.Random(1)
    for _ in range(500):
        frames = hostile(chance)
        assert costs(frames) <= 8 * sum(map(len, frames)) + CONSTANT_BYTES


# --- code ----------------------------------------------------------------------------------------


@pytest.mark.fault("F22")
def test_code_in_messages_and_files_is_never_run(tmp_path: Path) -> None:
    (found,) = canaries.measure("small", tmp_path)
    assert found.passed, found.measured
    for module in (wire, header):
        assert "pickle" not in Path(module.__file__).read_text(encoding="utf-8")
