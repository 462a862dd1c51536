"""What the fuzzing of the decoder takes for an error, and how it measures memory."""

from __future__ import annotations

import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.chaos import decoder_fuzz
from benchmarks.chaos.hostile_messages import MESSAGES, accepted, hostile, joined, split


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decoder_fuzz._INPUTS, "small", 300)
    monkeypatch.setitem(decoder_fuzz._MEASURED, "small", 10)


def test_decoder_is_fed(tmp_path: Path) -> None:
    inputs, worst, memory = decoder_fuzz.measure("small", tmp_path)
    assert inputs.passed
    assert inputs.numbers["inputs"] == 300
    assert worst.timed
    assert memory.passed


def test_an_error_that_is_not_the_decoders_own_is_told_with_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(frames: list[bytes]) -> bool:
        return accepted(frames) and 1 // 0 == 0

    monkeypatch.setattr(decoder_fuzz, "accepted", broken)
    inputs = decoder_fuzz.measure("small", tmp_path)[0]
    assert inputs.verdict == "broken"
    assert "ZeroDivisionError" in inputs.measured
    assert "of seed 0" in inputs.measured


def test_memory_is_a_multiple_of_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    constant = decoder_fuzz.CONSTANT_BYTES
    monkeypatch.setattr(decoder_fuzz, "costs", lambda _: constant + 60)
    assert decoder_fuzz.growth([b"0123", b"456789"]) == 6.0
    monkeypatch.setattr(decoder_fuzz, "costs", lambda _: constant - 1)
    assert decoder_fuzz.growth([b""]) == 0.0


def test_frames_can_be_one_input() -> None:
    for frames in MESSAGES:
        assert split(joined(frames)) == frames
    assert split(b"") == [b""]
    assert split(b"\x00\x00\x05abc") == [b"abc"]
    chance = random.Random(0)
    for _ in range(100):
        assert split(joined(frames := hostile(chance))) == frames


@pytest.mark.processes
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed")
def test_inputs_are_chosen_by_coverage(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.chaos.guided_fuzz", "500", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Done 500 runs" in done.stderr
    assert len(list((tmp_path / "corpus").iterdir())) >= len(MESSAGES)
