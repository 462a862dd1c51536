"""What is made of the numbers of an attack on a socket; `make chaos` runs the attack itself."""

from __future__ import annotations

from benchmarks.chaos import socket_flood


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
