"""What every launcher promises: actors start, their exits are reported, and nothing is left."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.core.launcher import ActorExit, Launcher, ProgressReport
from asyncrl.core.messages import Peer
from asyncrl.fleet.local import LocalLauncher
from asyncrl.fleet.threads import ThreadLauncher
from tests.fleet import bodies
from tests.support.helpers import wait_until
from tests.support.hosts import joined
from tests.support.sample_messages import make_peer as peer

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("fresh_helpers")]

DEADLINE_S = 60.0


def made(kind: str) -> AbstractContextManager[Launcher]:
    match kind:
        case "thread":
            return ThreadLauncher()
        case "host":
            return joined()
        case _:
            return LocalLauncher(start_method=kind)  # type: ignore[arg-type]


@pytest.fixture(params=["forkserver", "host", "thread"])
def launcher(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    with made(request.param) as one:
        yield one


@pytest.fixture(params=["forkserver", "host"])
def isolating(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    """One whose actors are processes: `fleet/threads.py` names what threads give up."""
    with made(request.param) as one:
        yield one


also_spawned = pytest.mark.parametrize("isolating", ["forkserver", "spawn", "host"], indirect=True)


def end_of(launcher: Launcher) -> ActorExit:
    (ended,) = launcher.exits(DEADLINE_S)
    return ended


def runs(launcher: Launcher, who: Peer) -> bool:
    return launcher.progress(who).turns > 0


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_actor_that_returns_ends_with_0(launcher: Launcher) -> None:
    launcher.launch(peer(4, 2), bodies.Runs(bodies.returns))
    ended = end_of(launcher)
    assert (ended.peer, ended.code, ended.text, ended.error) == (peer(4, 2), 0, "", "")
    assert ended.last == ProgressReport(turns=2, produced=9, waiting=False)


@pytest.mark.fault("F4")
def test_an_exception_is_reported_with_its_traceback(launcher: Launcher) -> None:
    launcher.launch(peer(), bodies.Runs(bodies.raises))
    ended = end_of(launcher)
    assert ended.code == 1
    assert ended.error.startswith("ValueError: the lid is shut (at ")
    assert "bodies.py:" in ended.error
    assert 'raise ValueError("the lid\\nis shut")' in ended.text
    assert ended.last.produced == 3


@pytest.mark.fault("F2")
def test_sys_exit_is_no_quiet_end(launcher: Launcher) -> None:
    launcher.launch(peer(), bodies.Runs(bodies.exits_system))
    ended = end_of(launcher)
    assert ended.code == 1
    assert ended.error.startswith("SystemExit: enough")


@pytest.mark.fault("F2")
def test_an_exit_past_python_reports_its_code(isolating: Launcher) -> None:
    isolating.launch(peer(), bodies.Runs(bodies.leaves))
    assert end_of(isolating).code == 3


@also_spawned
@pytest.mark.fault("F2")
def test_a_crash_reports_signal_and_stack(isolating: Launcher) -> None:
    isolating.launch(peer(), bodies.Runs(bodies.crashes))
    ended = end_of(isolating)
    assert ended.code == -signal.SIGSEGV
    assert "in crashes" in ended.text


def test_progress_is_read_while_it_runs_until_the_launcher_is_closed(launcher: Launcher) -> None:
    launcher.launch(peer(), bodies.Runs(bodies.waits))
    expected = ProgressReport(turns=1, produced=5, waiting=True, waits=1)
    wait_until(lambda: launcher.progress(peer()) == expected, DEADLINE_S, "progress")
    launcher.close()
    launcher.close()  # does nothing


@pytest.mark.fault("F3")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_is_read_while_it_runs_and_its_peak_afterwards(isolating: Launcher) -> None:
    isolating.launch(peer(), bodies.Runs(bodies.eats_and_waits))

    def has_grown() -> bool:
        assert isolating.exits(0.01) == [], "its owner polls for exits all the time"
        return isolating.memory_bytes(peer()) > 100 << 20

    wait_until(has_grown, DEADLINE_S, "100 MiB")
    isolating.kill(peer())
    # The system adds a process's pages up late, and by two ways: what it has shown may be too much.
    assert end_of(isolating).peak_bytes > 50 << 20


def test_each_end_is_reported_once_and_its_slot_can_be_filled_again(launcher: Launcher) -> None:
    produced = 11
    for incarnation in range(2):
        for i in range(3):  # a function defined on the spot can be sent, too
            launcher.launch(
                peer(i, incarnation), bodies.Runs(lambda progress: progress.turn(produced))
            )
        ends: list[ActorExit] = []
        wait_until(lambda: ends.extend(launcher.exits(1.0)) or len(ends) >= 3, DEADLINE_S, "ends")  # noqa: B023
        assert {ended.peer for ended in ends} == {peer(i, incarnation) for i in range(3)}
        assert {ended.last.produced for ended in ends} == {11}
        launcher.kill(peer(0, incarnation))  # does nothing
        assert launcher.exits(0.0) == []


@pytest.mark.fault("F3")
def test_an_actor_that_is_asked_to_finish_ends_with_0(launcher: Launcher) -> None:
    launcher.launch(peer(0), bodies.Runs(bodies.finishes))
    launcher.launch(peer(1), bodies.Runs(bodies.finishes))
    wait_until(lambda: runs(launcher, peer(0)) and runs(launcher, peer(1)), DEADLINE_S, "turns")
    launcher.finish(peer(1))
    ended = end_of(launcher)
    assert (ended.peer, ended.code, ended.last.produced) == (peer(1), 0, 2), "no other actor"


@also_spawned
@pytest.mark.fault("F6")
def test_kill_ends_an_actor_in_native_code(isolating: Launcher) -> None:
    isolating.launch(peer(), bodies.Runs(bodies.holds_the_gil))
    wait_until(lambda: runs(isolating, peer()), DEADLINE_S, "a first turn")
    isolating.kill(peer())
    ended = end_of(isolating)
    assert (ended.code, ended.last.turns) == (-signal.SIGKILL, 1)


@pytest.mark.fault("F6")
def test_kill_can_ask_for_stacks_first(launcher: Launcher) -> None:
    launcher.launch(peer(), bodies.Runs(bodies.waits))
    wait_until(lambda: runs(launcher, peer()), DEADLINE_S, "a first turn")
    launcher.kill(peer(), with_stacks=True)
    ended = end_of(launcher)
    assert ended.code == -signal.SIGKILL
    assert "in forever" in ended.text


@also_spawned
@pytest.mark.fault("F11")
def test_close_leaves_no_process_of_any_generation(isolating: Launcher, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    isolating.launch(peer(), bodies.Runs(bodies.StartsHelpers(notes)))
    wait_until(notes.is_file, DEADLINE_S, "the actor's helpers")
    pids = [int(pid) for pid in notes.read_text().split()]
    assert all(map(alive, pids))
    isolating.close()
    wait_until(lambda: not any(map(alive, pids)), DEADLINE_S, "all of them gone")


@pytest.mark.fault("F1")
def test_an_end_takes_the_actors_own_helpers_along(isolating: Launcher, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    isolating.launch(peer(), bodies.Runs(bodies.StartsHelpers(notes)))
    wait_until(notes.is_file, DEADLINE_S, "the actor's helpers")
    actor, near, _ = (int(pid) for pid in notes.read_text().split())
    os.kill(actor, signal.SIGKILL)
    assert end_of(isolating).code == -signal.SIGKILL
    wait_until(lambda: not alive(near), DEADLINE_S, "the helper in its group gone")


@pytest.mark.fault("F5")
def test_what_cannot_be_sent_is_refused_before_anything_starts(isolating: Launcher) -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot be sent.*lock"):
        isolating.launch(peer(), bodies.Runs(lambda _: lock.release()))
    assert isolating.exits(0.0) == []


@also_spawned
def test_surroundings_of_an_actor(isolating: Launcher, tmp_path: Path) -> None:
    isolating.launch(peer(), bodies.Runs(bodies.NotesSurroundings(tmp_path / "notes")))
    ended = end_of(isolating)
    assert ended.code == 0, ended.text
    assert (tmp_path / "notes").read_text().splitlines() == [
        "threads 1",
        f"cwd {Path.cwd()}",
        "leads its group True",
        "ignores ctrl-c True",
        "main None",
    ]
