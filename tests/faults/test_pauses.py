"""A learner that is stopped for a while, as by Ctrl-Z: its actors wait, then the run continues."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psutil
import pytest

from asyncrl.core.launcher import ProgressReport
from tests.faults.learners import boards, learner
from tests.support.helpers import wait_until
from tests.support.warm import Process

pytestmark = pytest.mark.processes

DEADLINE_S = 60.0
STEP_TIMEOUT_S = 5.0
START_TIMEOUT_S = 5.0
LOOKS_S = 0.5

STOPPED_BY_ITS_ACTORS = """
import dataclasses, json, os, signal, sys
from pathlib import Path
from asyncrl.supervision.local import LocalLauncher
from asyncrl.core.messages import Peer
from tests.support.fakes import CountingBatch
from tests.faults.runs import until, with_restarts
from tests.support.helpers import in_actor, wait_until
from tests.integration.test_train_async import run
from tests.supervision import bodies

enough = Path(sys.argv[1])
learner = os.getpid()

class Warm(LocalLauncher):
    def __init__(self, preload, **more):
        preload = [*preload, "tests.integration.test_train_async"]
        super().__init__(preload=preload, **more)
        self.launch(Peer(actor_id=99, incarnation=0), bodies.returns)
        wait_until(lambda: self.exits(1.0), 60.0, "the helper to have loaded all that actors need")

def make_env():
    if in_actor():
        enough.with_name(f"begun-{os.getpid()}").touch()
        begun = lambda: len(list(enough.parent.glob("begun-*"))) >= 2
        wait_until(begun, 60.0, "both actors")
        os.kill(learner, signal.SIGSTOP)
    return CountingBatch()

sys.modules["asyncrl.training.asynchronous"].LocalLauncher = Warm
cfg = with_restarts(2)
supervision = dataclasses.replace(cfg.supervision, start_timeout_s=float(sys.argv[2]))
result, _ = run(
    dataclasses.replace(cfg, supervision=supervision),
    make_env=make_env,
    strategy=until(lambda _: enough.exists()),
    stop=None,
)
print(json.dumps([result.ledger, result.actors]))
"""
"""In a start everything counts, imports too, which take seconds where many tests run at once. So
the helper has them behind it when the actors start, and these stop the learner together."""


def actors_of(process: Process) -> list[psutil.Process]:
    (server,) = psutil.Process(process.pid).children()
    return server.children()


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
        held = [actor.memory_info().rss for actor in actors_of(process)]
        # An actor gives a sign ten times a second.
        signs = 12 * STEP_TIMEOUT_S
        wait_until(
            lambda: all(r.waits > b.waits + signs for r, b in zip(read(), before, strict=True)),
            DEADLINE_S,
            "more time to pass than a step may take",
        )
        after = read()
        assert [r.produced for r in after] == [b.produced for b in before], "no actor goes ahead"
        grown = [actor.memory_info().rss for actor in actors_of(process)]
        assert all(g < h + (8 << 20) for g, h in zip(grown, held, strict=True))
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


@pytest.mark.fault("F16")
def test_actors_that_start_while_the_learner_is_stopped_wait_for_it(tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    with learner(enough, START_TIMEOUT_S, STOPPED_BY_ITS_ACTORS) as process, boards() as progress:
        wait_until(
            lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED,
            DEADLINE_S,
            "the learner to be stopped by its actors",
        )
        stopped_at = time.monotonic()
        actors = actors_of(process)
        assert len(actors) == 2
        wait_until(
            lambda: time.monotonic() > stopped_at + 2 * START_TIMEOUT_S,
            DEADLINE_S,
            "more time to pass than a start may take",
        )
        assert actors_of(process) == actors, "they wait"
        assert [board.read().turns for board in progress] == [0, 0]
        for actor in actors:
            actor.suspend()  # so that the learner looks at them before they can give a sign
        process.send_signal(signal.SIGCONT)
        goes_on_at = time.monotonic()
        wait_until(
            lambda: time.monotonic() > goes_on_at + LOOKS_S, DEADLINE_S, "the learner to look"
        )
        for actor in actors:
            actor.resume()
        wait_until(lambda: all(b.read().turns > 100 for b in progress), DEADLINE_S, "steps")
        enough.touch()
        out, errors = process.communicate(timeout=DEADLINE_S)
    ledger, rows = json.loads(out)
    assert [row["restarts"] for row in rows.values()] == [0, 0], errors
    assert ledger["lost"] == ledger["dropped"] == ledger["in_flight"] == 0
    assert ledger["produced"] == ledger["stored"]
