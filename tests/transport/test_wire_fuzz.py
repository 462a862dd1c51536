"""Hostile bytes for the decoder: it says `WireError` or gives a message, and costs little."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from asyncrl.transport import wire
from tests.support import scale
from tests.support.canaries import canaries, in_every_place, loaders_of
from tests.support.hostile_messages import (
    CONSTANT_BYTES,
    EXAMPLES,
    MESSAGES,
    accepted,
    bombs,
    costs,
    hostile,
)

INPUTS = 5_000_000 if scale.full else 5_000
MEASURED = 50_000 if scale.full else 500


def test_every_kind_of_message_is_an_example() -> None:
    assert {type(message) for message in EXAMPLES} == set(wire._KINDS)


@pytest.mark.timeout(1200)
@pytest.mark.fault("F22")
@pytest.mark.parametrize("seed", range(2))
def test_hostile_messages_raise_nothing_but_wire_errors(seed: int) -> None:
    chance = random.Random(seed)
    read = sum(accepted(hostile(chance)) for _ in range(INPUTS))
    assert 0 < read < INPUTS / 2, "some changes do no harm, most do"


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.fault("F23")
@pytest.mark.parametrize("frames", [pytest.param(bomb, id=name) for name, bomb in bombs()])
def test_no_message_takes_much_more_memory_than_it_has_bytes(frames: list[bytes]) -> None:
    size = sum(map(len, frames))
    assert costs(frames) <= 8 * size + CONSTANT_BYTES


@pytest.mark.timeout(1200)
@pytest.mark.fault("F23")
def test_hostile_messages_take_little_memory() -> None:
    chance = random.Random(1)
    for _ in range(MEASURED):
        frames = hostile(chance)
        assert costs(frames) <= 8 * sum(map(len, frames)) + CONSTANT_BYTES


# --- code ----------------------------------------------------------------------------------------


@pytest.mark.fault("F22")
def test_code_in_messages_and_files_is_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "sung"
    birds = canaries(mark)
    for bird in birds:
        bird.sing()  # one that cannot would prove nothing
        mark.rmdir()
        for frames in in_every_place(bird.data):
            accepted(frames)
        for load in loaders_of(tmp_path / "files", bird.data):
            load()
        assert not mark.exists(), bird.kind
    assert "pickle" not in Path(wire.__file__).read_text(encoding="utf-8")


def test_canaries_stand_in_all_frames_of_all_messages() -> None:
    places = list(in_every_place(b"canary"))
    assert all(any(b"canary" in frame for frame in frames) for frames in places)
    assert len(places) > 8 * sum(map(len, MESSAGES))
