"""A learner that is stopped for a while, as by Ctrl-Z: its actors wait, then the run continues."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from asyncrl.core.launcher import ProgressReport
from tests.faults.learners import boards, learner
from tests.support.helpers import wait_until

pytestmark = pytest.mark.processes

DEADLINE_S = 60.0
STEP_TIMEOUT_S = 5.0


@pytest.mark.fault("F16", "F30", "F33")
def test_learner_that_was_stopped_finds_its_actors_waiting_and_continues(tmp_path: Path) -> None:
    with learner(tmp_path / "enough", STEP_TIMEOUT_S) as process, boards() as progress:

        def read() -> list[ProgressReport]:
            return [board.read() for board in progress]

        wait_until(lambda: all(r.turns > 100 for r in read()), DEADLINE_S, "some steps")
        process.send_signal(signal.SIGSTOP)
        before = read()

        def out_of_credit() -> bool:
            """Hold once all have made no step over several signs: some credit was on its way."""
            for i, report in enumerate(read()):
                if report.turns != before[i].turns:
                    before[i] = report
            return all(r.waits > b.waits + 5 for r, b in zip(read(), before, strict=True))

        wait_until(out_of_credit, DEADLINE_S, "actors without credit")
        before = read()
        # An actor gives a sign ten times a second.
        signs = 12 * STEP_TIMEOUT_S
        wait_until(
            lambda: all(r.waits > b.waits + signs for r, b in zip(read(), before, strict=True)),
            DEADLINE_S,
            "more time to pass than a step may take",
        )
        after = read()
        assert [r.produced for r in after] == [b.produced for b in before], "no actor goes ahead"
        process.send_signal(signal.SIGCONT)
        wait_until(
            lambda: all(r.turns > a.turns + 100 for r, a in zip(read(), after, strict=True)),
            DEADLINE_S,
            "steps again",
        )
        (tmp_path / "enough").touch()
        out, _ = process.communicate(timeout=DEADLINE_S)
    ledger, actors = json.loads(out)
    assert [actor["restarts"] for actor in actors.values()] == [0, 0]
    assert ledger["lost"] == ledger["dropped"] == ledger["in_flight"] == 0
    assert ledger["produced"] == ledger["stored"] > sum(r.produced for r in after)
