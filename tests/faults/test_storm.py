"""The storm of kills that is run at length before a release, in small."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from asyncrl.segment import SegmentConfig
from asyncrl.transports.zeromq import ZmqTransportConfig

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
    message = 4 * SegmentConfig().length
    messages = ZmqTransportConfig().window + 2  # one that waits for credit, one not yet full
    assert told["lost_per_kill"] <= messages * message, "credit bounds what a kill can cost"
    calm, after = told["learner_descriptors"]
    assert after < calm + 6, "none is left open for each kill"
