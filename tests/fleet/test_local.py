"""What is the local launcher's own: its helper process, its directory, and who survives whom."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from asyncrl.core.errors import ActorFailed, ConfigError
from asyncrl.core.messages import Peer
from asyncrl.core.types import ActorId
from asyncrl.fleet import local, local_helper
from asyncrl.fleet.local import LocalLauncher, StartMethod
from asyncrl.fleet.local_files import kill_marked, make_directory, marked
from asyncrl.fleet.local_output import Outputs
from tests.contracts.test_launcher import DEADLINE_S, alive, runs
from tests.fleet import bodies
from tests.support.helpers import many_descriptors, wait_until
from tests.support.leftovers import children
from tests.support.sample_messages import make_peer as peer


def its_server() -> psutil.Process:
    (server,) = children()
    # What has just been started has no command line for a moment.
    wait_until(lambda: "asyncrl helper" in " ".join(server.cmdline()), DEADLINE_S, "its title")
    return server


@pytest.mark.fault("F35")
def test_its_directory_is_private_and_goes_with_it() -> None:
    with LocalLauncher() as launcher:
        assert stat.S_IMODE(launcher.directory.stat().st_mode) == 0o700
        assert launcher.directory.is_dir()
    assert not launcher.directory.exists()


@pytest.mark.usefixtures("fresh_helpers")
def test_its_helper_runs_nothing_that_lies_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Others may have put it there, as they can in /tmp.
    (tmp_path / "json.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    with LocalLauncher() as launcher:
        launcher.launch(peer(), bodies.Runs(bodies.returns))
        assert launcher.exits(DEADLINE_S)
    assert not (tmp_path / "ran").exists()


@pytest.mark.fault("F38")
def test_its_end_reaches_its_helper_also_if_a_child_of_the_learner_keeps_its_socket() -> None:
    waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with LocalLauncher() as launcher:
        launcher.launch(peer(), bodies.Runs(bodies.waits))
        kept = [launcher._control.fileno()]
        # What has been forked keeps all descriptors: workers of a data loader, or of a pool.
        with subprocess.Popen(waits, stdin=subprocess.PIPE, pass_fds=kept):
            launcher.close()
    assert launcher._server.returncode == 0, "it has ended by itself"


@pytest.mark.fault("F24")
def test_actors_are_watched_with_any_number_of_open_files() -> None:
    with many_descriptors(), LocalLauncher() as launcher:
        launcher.launch(peer(), bodies.Runs(bodies.returns))
        (ended,) = launcher.exits(DEADLINE_S)
        assert ended.code == 0


@pytest.mark.fault("F1")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to the helper")
def test_end_kills_what_the_actor_started_in_other_sessions_and_nothing_else(
    tmp_path: Path,
) -> None:
    with LocalLauncher() as launcher:
        notes = [tmp_path / name for name in ("helpers", "orphan", "others")]
        launcher.launch(peer(0), bodies.Runs(bodies.StartsHelpers(notes[0])))
        launcher.launch(peer(1), bodies.Runs(bodies.LeavesOrphan(notes[1])))
        launcher.launch(peer(2), bodies.Runs(bodies.LeavesOrphan(notes[2])))
        for path in notes:
            wait_until(path.is_file, DEADLINE_S, "what the actors start")
        far, orphan, others = (int(path.read_text().split()[-1]) for path in notes)
        launcher.kill(peer(0))
        launcher.kill(peer(1))
        wait_until(lambda: not alive(far), DEADLINE_S, "the one with a parent gone")
        wait_until(lambda: not alive(orphan), DEADLINE_S, "the one without gone")
        assert alive(others), "its actor runs"
        assert launcher.progress(peer(2)).turns


@pytest.mark.fault("F14", "F15")
def test_signals_to_a_whole_job_are_left_to_the_learner() -> None:
    with LocalLauncher() as launcher:
        launcher.launch(peer(), bodies.Runs(bodies.takes_turns))
        wait_until(partial(runs, launcher, peer()), DEADLINE_S, "a turn")
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP):
            its_server().send_signal(number)
        (actor,) = its_server().children()
        actor.send_signal(signal.SIGUSR1)
        turns = launcher.progress(peer()).turns
        wait_until(lambda: launcher.progress(peer()).turns > turns, DEADLINE_S, "more of it")
        actor.send_signal(signal.SIGTERM)
        (ended,) = launcher.exits(DEADLINE_S)
        assert ended.code == -signal.SIGTERM, "or else environments could not end their helpers"


@pytest.mark.usefixtures("fresh_helpers")
@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_output_and_log_of_an_actor_are_printed_also_if_it_was_killed(
    start_method: StartMethod, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with LocalLauncher(start_method=start_method, names={ActorId(1): "evaluator"}) as launcher:
        launcher.launch(peer(1), bodies.Runs(bodies.logs_and_prints))
        (ended,) = launcher.exits(DEADLINE_S)
    assert ended.code == -signal.SIGKILL
    logs = [(r.name, r.levelname, r.message) for r in caplog.records]
    assert logs == [("tests.bodies", "WARNING", "the lid\nis loose")]
    printed = ["a line", "and \\udc80 another", "from native code", "of a child", "last words"]
    assert capfd.readouterr() == ("", "".join(f"evaluator: {line}\n" for line in printed))


@pytest.mark.timeout(120)
def test_many_orders_at_once_wait_for_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = socket.socketpair()
    for end in pair:  # the smallest that the system allows: a few messages
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    monkeypatch.setattr(local.socket, "socketpair", lambda: pair)
    with LocalLauncher() as launcher:
        peers = {peer(actor_id) for actor_id in range(30)}
        for one in peers:
            launcher.launch(one, bodies.Runs(bodies.waits))
        for one in peers:
            launcher.kill(one)
        ended = set[Peer]()
        while len(ended) < len(peers):
            ended |= {one.peer for one in launcher.exits(DEADLINE_S)}
        assert ended == peers


@pytest.mark.usefixtures("fresh_helpers")
def test_a_module_that_cannot_be_preloaded_does_not_keep_actors_from_starting() -> None:
    with LocalLauncher(preload=["no_such_module"]) as launcher:
        launcher.launch(peer(), bodies.Runs(bodies.returns))
        assert launcher.exits(DEADLINE_S)[0].code == 0


@pytest.mark.fault("F11")
@pytest.mark.usefixtures("fresh_helpers")  # which show the mark that they were started with
@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_without_its_helper_process_it_says_so_and_kills_all(
    tmp_path: Path, start_method: StartMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what actors have started, and those that hold the interpreter's lock."""
    notes = [tmp_path / "helpers", tmp_path / "fork"]
    # The numbers of groups whose parent has died may be those of other programs.
    monkeypatch.setattr(os, "killpg", None)
    with LocalLauncher(start_method=start_method) as launcher:
        launcher.launch(peer(0), bodies.Runs(bodies.StartsHelpers(notes[0])))
        launcher.launch(peer(1), bodies.Runs(bodies.ForksAway(notes[1])))
        launcher.launch(peer(2), bodies.Runs(bodies.holds_the_gil))
        for path in notes:
            wait_until(path.is_file, DEADLINE_S, "what the actors start")
        wait_until(partial(runs, launcher, peer(2)), DEADLINE_S, "a first turn")
        family = its_server().children(recursive=True)
        its_server().kill()
        with pytest.raises(ActorFailed, match="process that starts actors has exited"):
            wait_until(lambda: launcher.exits(1.0), DEADLINE_S, "the news")
        all_gone(family)
    assert {int(path.read_text().split()[-1]) for path in notes} <= {p.pid for p in family}


LEARNER = textwrap.dedent("""\
    import sys
    from pathlib import Path
    from asyncrl.fleet.local import LocalLauncher
    from tests.fleet import bodies
    from tests.support.sample_messages import make_peer as peer

    launcher = LocalLauncher(start_method=sys.argv[2])
    launcher.launch(peer(0), bodies.Runs(getattr(bodies, sys.argv[3])(Path(sys.argv[1]))))
    launcher.launch(peer(1), bodies.Runs(bodies.holds_the_gil))
    while not launcher.progress(peer(1)).turns:
        launcher.exits(0.01)
    print(launcher.directory, flush=True)
    sys.stdin.read()
""")


@contextmanager
def learner(
    notes: Path, start_method: str, body: str
) -> Iterator[tuple[psutil.Popen, Path, list[psutil.Process]]]:
    """Start a learner with two actors; give it, its directory, and all processes below it."""
    command = [sys.executable, "-c", LEARNER, str(notes), start_method, body]
    pipe = subprocess.PIPE
    with psutil.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        directory = Path(process.stdout.readline().strip())
        wait_until(notes.is_file, DEADLINE_S, "the actor's helpers")
        yield process, directory, process.children(recursive=True)


def all_gone(family: list[psutil.Process]) -> None:
    wait_until(lambda: not any(alive(p.pid) for p in family), DEADLINE_S, "all of them gone")


@pytest.mark.behaviour(number=40)
@pytest.mark.fault("F11", "F35")
@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_nothing_survives_a_learner_that_is_killed(tmp_path: Path, start_method: str) -> None:
    notes = tmp_path / "notes"
    with learner(notes, start_method, "StartsHelpers") as (process, directory, family):
        assert len(family) == 5  # the server, two actors, and two helpers of one of them
        for pid in notes.read_text().split():
            os.kill(int(pid), signal.SIGSTOP)  # an actor and its helpers; the other holds the GIL
        process.kill()
    all_gone(family)
    wait_until(lambda: not directory.exists(), DEADLINE_S, "the directory gone")


@pytest.mark.fault("F11", "F35")
def test_what_a_learner_and_its_helper_left_is_removed_by_the_next_launcher(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with learner(notes, "forkserver", "ForksAway") as (process, directory, family):
        far = psutil.Process(int(notes.read_text()))
        with LocalLauncher():
            assert directory.is_dir(), "a process uses it"
        process.suspend()  # so that it cannot tidy up after its helper
        process.children()[0].kill()
        process.kill()
    family.remove(far)  # in a separate session, where only the helper finds it
    all_gone(family)
    assert alive(far.pid)
    assert directory.is_dir(), "no process was left to remove it"
    foreign = directory.with_name("asyncrl-of-another-user")
    foreign.mkdir()
    with LocalLauncher() as launcher:
        assert not directory.exists()
        all_gone([far])
        assert foreign.is_dir(), "not one of ours"
        assert launcher.directory.is_dir()
    foreign.rmdir()


def test_process_that_the_system_does_not_start_is_an_end_with_its_reason() -> None:
    server: Any = object.__new__(local_helper._Server)
    said: list[dict[str, Any]] = []
    server._forks, server._send, server._pids = True, said.append, {}
    server._bodies, server._outputs = {1: os.open(os.devnull, os.O_RDONLY)}, Outputs(select.poll())
    server._fork = no_room
    server._launch("actor-0", 1)
    assert ([one["ended"] for one in said], server._pids) == (["actor-0"], {})
    assert "Too many open files" in said[0]["error"]


def no_room(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.fault("F17", "F35")
def test_directory_that_cannot_be_made_is_not_left_and_its_place_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", no_room)
        with pytest.raises(ConfigError, match=r"in /.*: Too many open files; set TMPDIR"):
            make_directory()
        assert not [*Path(tempfile.gettempdir()).glob(".asyncrl-*")]
        nowhere = [f"{tmp_path}/nowhere/a", f"{tmp_path}/nowhere/b"]
        patch.setattr(tempfile, "tempdir", None)
        patch.setattr(tempfile, "_candidate_tempdir_list", lambda: nowhere)
        with pytest.raises(ConfigError, match=f"of {', '.join(nowhere)}; set TMPDIR"):
            make_directory()


@pytest.mark.fault("F11")
def test_only_what_is_marked_with_a_directory_is_killed_for_it(tmp_path: Path) -> None:
    waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    mine, similar = tmp_path / "mine", tmp_path / "mine-too"
    environments = [marked(dict(os.environ), d) for d in (mine, similar)] + [dict(os.environ)]
    with ExitStack() as ending:
        processes = []
        for environment in environments:
            process = subprocess.Popen(waits, stdin=subprocess.PIPE, env=environment)
            processes.append(process)
            ending.enter_context(process)
            ending.callback(process.kill)
        kill_marked(mine)
        assert processes[0].wait(DEADLINE_S) == -signal.SIGKILL
        assert [process.poll() for process in processes[1:]] == [None, None]


SWEEP = textwrap.dedent("""
    import multiprocessing

    from asyncrl.fleet.local import LocalLauncher
    from tests.fleet.bodies import Runs
    from tests.support.sample_messages import PEER

    def run_one(seed):
        with LocalLauncher() as launcher:
            launcher.launch(PEER, Runs(lambda progress: progress.turn(seed)))
            (ended,) = launcher.exits(60.0)
            return ended.text or ended.last.produced

    if __name__ == "__main__":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(run_one, [7]))
""")


def test_script_that_spawns_processes_may_start_actors_in_them(tmp_path: Path) -> None:
    script = tmp_path / "sweep.py"
    script.write_text(SWEEP)
    command = [sys.executable, str(script)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment
    )
    assert done.stdout == "[7]\n", done.stderr
