"""The learner's benchmark measures what its names say, and compares the right sides."""

from __future__ import annotations

import pytest

from benchmarks.bench_learner import CASES, FIXED, PEER, SAMPLED, compare_all, measures_of


@pytest.mark.parametrize("name", CASES)
def test_all_sides_are_rates_of_one_case(name: str) -> None:
    case = CASES[name]
    measures = measures_of(case, 0.02, ["bfloat16", "normalized observations"], None)
    assert list(measures) == [SAMPLED, FIXED, "bfloat16", "normalized observations"]
    rounds = {side: [measure()] for side, measure in measures.items()}
    assert all(rate > 0.0 for (rate,) in rounds.values())
    shown = {comparison.what: comparison for comparison in compare_all(case, rounds)}
    assert list(shown) == [
        f"{case.words}: {SAMPLED} / {FIXED}",
        f"{case.words}: bfloat16 / {SAMPLED}",
        f"{case.words}: normalized observations / {SAMPLED}",
    ]


def test_peer_is_compared_where_it_was_measured() -> None:
    rounds = {SAMPLED: [300.0, 200.0], FIXED: [400.0, 200.0], PEER: [100.0, 100.0]}
    ratios = {c.what.partition(": ")[2]: c.ratio for c in compare_all(CASES["sac"], rounds)}
    assert ratios == {f"{SAMPLED} / {FIXED}": 0.875, f"{SAMPLED} / {PEER}": 2.5}
