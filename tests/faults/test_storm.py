"""The storm of kills that is run at length before a release, in small."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos.kill_storm import KillStorm, findings
from benchmarks.chaos.stage import Stage

pytestmark = pytest.mark.processes


@pytest.mark.fault("F1")
def test_run_under_a_storm_of_kills_accounts_for_all_and_all_actors_come_back(
    tmp_path: Path,
) -> None:
    storm = KillStorm(kills=6, seconds=3.0, calm_s=1.0)
    stage = Stage(tmp_path)
    stage.play(storm)
    assert len(storm.away_s) == len(storm.killed) == 6
    assert max(storm.away_s) > 0
    for finding in findings(storm, stage):
        assert finding.timed or finding.passed, f"{finding.what}: {finding.measured}"
