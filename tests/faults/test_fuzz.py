"""A whole run, while others speak nonsense to it; at full size an entry of the chaos bench."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos.nonsense import measure


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of rows from noise
@pytest.mark.fault("F22", "F23", "F24", "F26")
def test_who_speaks_nonsense_with_a_key_or_without_changes_nothing(tmp_path: Path) -> None:
    for finding in measure("small", tmp_path):
        assert finding.passed or finding.timed, finding
        assert all(finding.numbers.get(kind, 1) for kind in ("changed", "hosts", "strangers"))
