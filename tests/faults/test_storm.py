"""The storm of kills that is run at length before a release, in small."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

DEADLINE_S = 100.0


@pytest.mark.fault("F1")
def test_run_under_a_storm_of_kills_accounts_for_all_and_everybody_comes_back() -> None:
    module = "benchmarks.chaos.kill_storm"
    done = subprocess.run(
        [sys.executable, "-m", module, "--kills", "6", "--seconds", "3", "--calm-seconds", "1"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["restarts"] >= 6
    assert told["transitions"]["in_flight"] == 0
    window, rows = 8, 4 * 16  # messages, and rows of one
    assert told["lost_per_kill"] <= (window + 2) * rows, "credit bounds what a kill can cost"
    assert told["learner_descriptors"][1] == told["learner_descriptors"][0]
