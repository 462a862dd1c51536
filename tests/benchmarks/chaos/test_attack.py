"""The attack of a socket, in small, and what is made of its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos import socket_flood


@pytest.mark.usefixtures("tracker_ends")
@pytest.mark.processes
def test_an_honest_actor_is_measured_in_peace_and_under_attack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(socket_flood._ATTACKS, "small", 50)
    monkeypatch.setitem(socket_flood._CALM_S, "small", 0.5)
    findings = socket_flood.measure("small", tmp_path)
    assert [finding.target for finding in findings] == [16] * 6
    assert all(finding.passed for finding in findings if not finding.timed)
    shares = [finding.numbers["share"] for finding in findings if finding.timed]
    assert all(isinstance(share, float) and share > 0 for share in shares)


def test_outcome_of_an_attack_is_judged() -> None:
    attack = socket_flood._Attack(
        attacks=100,
        seconds=2.0,
        share=0.7,
        growth_bytes=6_000_000,
        unauthorised=0,
        heard=False,
        refused=0,
        alive=True,
    )
    safe, memory, throughput = socket_flood._findings("a socket", attack)
    assert safe.verdict == "broken", "an attack without refusals proves nothing"
    assert memory.verdict == "broken"
    assert memory.measured == "+6.0 MB"
    assert throughput.verdict == "missed"
    assert throughput.measured == "70% of calm"
