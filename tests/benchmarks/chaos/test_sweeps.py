"""What the sweeps over checkpoints take for whole, and what not."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from benchmarks.chaos import corruption
from benchmarks.chaos.corruption import damage, fallback_s, unnoticed
from benchmarks.chaos.traced_saves import groups, some_of, value_of


def test_points_are_taken_evenly() -> None:
    points = [("write", i) for i in range(1, 11)]
    assert some_of(points, None) == points
    assert some_of(points, 3) == [("write", 1), ("write", 5), ("write", 10)]
    assert some_of(points, 99) == points


def test_a_mix_of_two_checkpoints_has_no_value() -> None:
    assert value_of(Checkpoint(groups(2), {})) == 2
    mixed = {"agent": groups(1)["agent"], "model": groups(2)["model"]}
    assert math.isnan(value_of(Checkpoint(mixed, {})))


def test_damage_tells_how_and_leaves_the_other_file(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    generator = np.random.default_rng(0)
    ways = set()
    for _ in range(100):
        path.write_bytes(bytes(range(200)))
        other.write_bytes(b"other")
        if how := damage(path, other, generator):
            assert path.read_bytes() != bytes(range(200))
            ways.add(how.split()[0])
        assert other.read_bytes() == b"other"
    assert ways == {"flip", "cut", "zeros", "swap", "insert", "noise"}


def test_a_loader_that_notices_nothing_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpointer, "load", lambda *_, **__: Checkpoint(groups(100), {}))
    found = unnoticed(tmp_path, 3)
    assert any("it was loaded" in each for each in found)
    assert any("the one before was not found" in each for each in found)


def test_falling_back_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fallback_s(tmp_path / "a", 4000) > 0
    monkeypatch.setitem(corruption._COUNT, "small", 5)
    monkeypatch.setattr(corruption, "_LARGE_BYTES", 4000)
    findings = corruption.measure("small", tmp_path)
    assert [finding.target for finding in findings] == [12, 12]
    assert findings[0].passed
