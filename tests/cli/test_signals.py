"""The first signal ends a run well, the second at once, and the grace of a scheduler as well."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.interrupter import Interrupter
from asyncrl.run import signals
from asyncrl.run.signals import interrupting
from tests.cli.console import COMMAND, SLOW, TINY, hears, misbehaving_env, started
from tests.support import warm
from tests.support.helpers import no_thread, wait_until

DEADLINE_S = 60.0
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def send_to_oneself(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Keep the process, and note the exit codes with which it would have ended."""
    codes: list[int] = []
    monkeypatch.setattr(signals, "os", SimpleNamespace(**{**vars(os), "_exit": codes.append}))
    return codes


@pytest.mark.behaviour(number=42)
@pytest.mark.fault("F12", "F14")
@pytest.mark.parametrize("number", SIGNALS)
def test_first_signal_stops_the_run_and_gives_the_exit_code(
    number: signal.Signals, ends: list[int]
) -> None:
    interrupter = Interrupter()
    with interrupting(interrupter) as interrupted:
        assert interrupted.exit_code == 0
        send_to_oneself(number)
        assert interrupter.wait(DEADLINE_S)
    assert interrupter.reason == f"interrupted by {number.name}"
    assert interrupter.urgent
    assert interrupted.exit_code == 128 + number
    assert not ends


@pytest.mark.fault("F13")
@pytest.mark.parametrize("number", SIGNALS)
def test_second_signal_ends_the_process_also_where_no_more_threads_are_allowed(
    number: signal.Signals,
    ends: list[int],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupter = Interrupter()
    with interrupting(interrupter):
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        send_to_oneself(signal.SIGINT)
        assert interrupter.wait(DEADLINE_S)
        send_to_oneself(number)
        wait_until(lambda: ends, DEADLINE_S, "the end")
    assert ends == [128 + number]
    assert capfd.readouterr().err == "asyncrl: interrupted twice; ended without a summary\n"


@pytest.mark.fault("F14")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_that_is_sent_twice_is_one(
    number: signal.Signals, ends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that is closed sends SIGHUP, and so does its shell: a checkpoint must come."""
    monkeypatch.setattr(signals, "_SAME_WITHIN_S", 600.0)
    interrupter = Interrupter()
    with interrupting(interrupter) as interrupted:
        for _ in range(5):
            send_to_oneself(number)
        assert interrupter.wait(DEADLINE_S)
    assert not ends
    assert interrupted.exit_code == 128 + number


@pytest.mark.fault("F14")
@pytest.mark.parametrize(
    ("number", "way"),
    [
        (signal.SIGTERM, "saves"),
        (signal.SIGHUP, "fails"),
        (signal.SIGTERM, "hangs"),
        (signal.SIGTERM, "has none"),
    ],
)
def test_run_is_gone_when_its_grace_is_over_with_a_summary_if_it_can_be_saved(
    number: signal.Signals,
    way: str,
    ends: list[int],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evict, interrupter = threading.Event(), Interrupter()
    ways = {"saves": lambda: None, "fails": lambda: 1 // 0, "hangs": evict.wait}
    monkeypatch.setattr(signals, "_SUMMARY_S", 0.05 if way == "hangs" else 20.0)
    with interrupting(interrupter, 0.2) as interrupted:
        interrupted.save_summary = ways.get(way)
        send_to_oneself(number)
        wait_until(lambda: ends, DEADLINE_S, "the end")
    evict.set()
    assert interrupter.reason == f"interrupted by {number.name}"
    assert ends == [128 + number]
    ended = f"ended {'with' if way == 'saves' else 'without'} a summary"
    why = f"not done within grace_s after {number.name}"
    assert capfd.readouterr().err == f"asyncrl: {why}; {ended}\n"


@pytest.mark.fault("F12")
def test_second_ctrl_c_ends_at_any_time(ends: list[int]) -> None:
    with interrupting(Interrupter(), 0.1):
        send_to_oneself(signal.SIGINT)
        # Load cannot make an end here: at most it hides one that comes later than this.
        assert not threading.Event().wait(0.3), "nothing interrupts"
        assert not ends


@pytest.mark.fault("F13")
def test_nothing_is_ended_once_the_run_has_ended(ends: list[int]) -> None:
    with interrupting(Interrupter()) as interrupted:
        send_to_oneself(signal.SIGINT)
        interrupted.disarm()
        send_to_oneself(signal.SIGTERM)
    assert interrupted.exit_code == 143
    assert not ends


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12, of any fork
def test_signal_to_a_forked_child_does_not_reach_its_parent() -> None:
    with interrupting(Interrupter()) as interrupted:
        child = os.fork()
        if not child:
            send_to_oneself(signal.SIGTERM)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert interrupted.exit_code == 0


def test_nothing_is_left_afterwards() -> None:
    handlers = [signal.getsignal(number) for number in SIGNALS]
    threads, descriptors = threading.active_count(), psutil.Process().num_fds()
    others, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    before = signal.set_wakeup_fd(wakeup)
    try:
        with interrupting(Interrupter(), 600.0):
            assert threading.active_count() == threads + 1
            assert [signal.getsignal(number) for number in SIGNALS] != handlers
    finally:
        assert signal.set_wakeup_fd(before) == wakeup, "the earlier listener is back"
        os.close(others)
        os.close(wakeup)
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    assert threading.active_count() == threads
    assert psutil.Process().num_fds() == descriptors


IN_NATIVE_CODE = """
import atexit, contextlib, hashlib
from asyncrl.cli import signals
from asyncrl.core.interrupter import Interrupter
from asyncrl.run.signals import interrupting

atexit.register(print, "a long farewell")
signals._GRACE_S = 0.4
with {block}:
    print("begins", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
"""


@pytest.mark.fault("F13")
@pytest.mark.processes
@pytest.mark.parametrize(
    ("block", "sent", "why"),
    [
        (
            "interrupting(Interrupter())",
            [signal.SIGINT, signal.SIGTERM],  # two of one kind may be taken for one
            "interrupted twice",
        ),
        (
            "contextlib.nullcontext(signals.raise_at_signals())",
            [signal.SIGTERM],
            "not done within 0.4 s after SIGTERM",
        ),
    ],
)
def test_end_does_not_wait_for_native_code_and_prints_nothing(
    block: str, sent: list[signal.Signals], why: str, tmp_path: Path
) -> None:
    code = IN_NATIVE_CODE.format(block=block)
    with warm.started("code", [code], cwd=tmp_path) as process:
        assert process.stdout.readline() == "begins\n"
        child = psutil.Process(process.pid)
        before_s = child.cpu_times().user
        wait_until(lambda: child.cpu_times().user > before_s + 0.2, DEADLINE_S, "it to be in there")
        for number in sent:
            process.send_signal(number)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert out == ""
    assert err == f"asyncrl: {why}; ended without a summary\n"
    assert process.returncode in {128 + number for number in sent}  # whichever is delivered last


@pytest.mark.fault("F14")
def test_signal_that_is_to_be_ignored_stays_ignored() -> None:
    """`nohup` does so with SIGHUP, before the program starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        interrupter = Interrupter()
        with interrupting(interrupter) as interrupted:
            send_to_oneself(signal.SIGHUP)
        assert not interrupter.is_set
        assert interrupted.exit_code == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.fault("F15")
def test_scheduler_that_warns_gets_a_checkpoint_and_the_run_continues() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        interrupter = Interrupter()
        with interrupting(interrupter) as interrupted:
            assert not interrupter.save_requested
            for _ in range(100):
                send_to_oneself(signal.SIGUSR1)
            assert interrupter.save_requested
        assert not interrupter.is_set
        assert interrupted.exit_code == 0
        assert heard == [signal.SIGUSR1] * 100, "the earlier listener is back"
    finally:
        signal.signal(signal.SIGUSR1, before)


def wait_for_a_record(run_dir: Path) -> None:
    """Wait for the first record after an optimisation step, so that there is a model to save."""

    def learned() -> bool:
        path = run_dir / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        *whole, _ = text.split("\n")  # a reader may see half of the line being written
        return any(json.loads(line)["opt_steps"] > 0 for line in whole)

    wait_until(learned, DEADLINE_S, "a record of the run")


@pytest.mark.fault("F12", "F15")
@pytest.mark.processes
def test_run_saves_on_request_and_continues_until_it_is_interrupted(tmp_path: Path) -> None:
    with started("train", "dqn", *SLOW, "--run-dir", "x", cwd=tmp_path) as process:
        wait_for_a_record(tmp_path / "x")
        if sys.platform == "linux":
            assert Path(f"/proc/{process.pid}/comm").read_text() == "asyncrl-train\n"
        checkpoints = Checkpointer(tmp_path / "x/checkpoints")
        process.send_signal(signal.SIGUSR1)
        wait_until(checkpoints.latest, DEADLINE_S, "a checkpoint")
        first = checkpoints.latest()
        assert process.poll() is None
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: checkpoints.latest() != first, DEADLINE_S, "another, from later on")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (130, "")
    assert "run ended: interrupted by SIGINT" in out
    assert out.endswith("\n  resume     asyncrl resume x\n")
    summary = json.loads((tmp_path / "x/summary.json").read_text())
    assert summary["stop_reason"] == "interrupted by SIGINT"
    assert summary["opt_steps"] > 0
    checkpoint = checkpoints.load(str(summary["opt_steps"]))
    assert checkpoint.meta["opt_steps"] == summary["opt_steps"]
    assert set(checkpoint.groups) >= {"agent", "model"}


@pytest.mark.fault("F14")
@pytest.mark.processes
def test_terminal_that_has_gone_keeps_the_exit_code_of_its_signal(tmp_path: Path) -> None:
    terminal, its_end = pty.openpty()
    with subprocess.Popen(
        [COMMAND, "train", "dqn", *SLOW, "--quiet", "--run-dir", "x"],
        cwd=tmp_path,
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        start_new_session=True,
    ) as process:
        os.close(its_end)
        try:
            wait_for_a_record(tmp_path / "x")
            os.close(terminal)
            process.send_signal(signal.SIGHUP)
            assert process.wait(DEADLINE_S) == 128 + signal.SIGHUP
        finally:
            process.kill()
    assert (tmp_path / "x/summary.json").exists()


@pytest.mark.slow
@pytest.mark.fault("F14")
@pytest.mark.processes
def test_scheduler_waits_for_no_actor_that_hangs(tmp_path: Path) -> None:
    args = [*misbehaving_env("sleep", when="hang"), "--evaluate.where", "off", "--run-dir", "x"]
    (tmp_path / "patient.yaml").write_text("supervision: {stop_timeout_s: 600}")
    args += ["--config", "patient.yaml", "--grace-s", "10"]
    with started("train", "dqn", *TINY, *args, cwd=tmp_path) as process:
        wait_for_a_record(tmp_path / "x")
        (tmp_path / "hang").touch()
        wait_until((tmp_path / "hang.done").exists, DEADLINE_S, "the actor to hang")
        for _ in range(2):  # at once, as closed terminals and schedulers do
            process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 143
    why = "not done within grace_s after SIGTERM"
    is_there = (tmp_path / "x/summary.json").exists()  # it may find a slow disk, but says so
    assert err == f"asyncrl: {why}; ended {'with' if is_there else 'without'} a summary\n"
    assert Checkpointer(tmp_path / "x/checkpoints").load_latest()


# --- before a run begins, and in commands that are no runs ---------------------------------------


@pytest.mark.fault("F14")
@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "command"),
    [
        (signal.SIGTERM, "doctor waiting:Waiting"),
        (signal.SIGHUP, "train dqn --actors auto --env waiting:Waiting"),
    ],
)
def test_every_command_ends_at_a_signal(
    number: signal.Signals, command: str, tmp_path: Path
) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    with started(*command.split(), cwd=tmp_path) as process:
        wait_until((tmp_path / "begun").exists, DEADLINE_S, "the environment")
        process.send_signal(number)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (128 + number, f"asyncrl: interrupted by {number.name}\n")
    assert not (tmp_path / "runs").exists()


WAITING = """
import threading
from pathlib import Path

def Waiting():
    Path("begun").touch()
    threading.Event().wait()
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_command_ends_at_a_signal_while_it_loads(tmp_path: Path) -> None:
    """A fresh process, as forked ones have loaded everything."""
    with warm.started("asyncrl", ["train", "dqn"], cwd=tmp_path, fresh=True) as process:
        wait_until(lambda: hears(process.pid, signal.SIGUSR1), DEADLINE_S, "the signals' handlers")
        process.send_signal(signal.SIGUSR1)  # there is nothing to save yet
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (143, "asyncrl: interrupted by SIGTERM\n")
    assert not list(tmp_path.iterdir())


INTERRUPTED_IMPORT = """
import os, signal, sys
from types import ModuleType
from asyncrl.cli import main

def parse(args):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            pass
    except KeyboardInterrupt:
        if args == ["fails"]:
            raise ImportError("cannot load module more than once per process") from None

command = sys.modules["command"] = ModuleType("command")
command.parse, command.run = parse, print
main.COMMANDS["runs"] = "command"
main.main()
"""


@pytest.mark.processes
@pytest.mark.parametrize("import_of_native_code", ["fails", "succeeds"])
def test_interrupt_that_an_import_does_not_pass_on_ends_the_command(
    import_of_native_code: str, tmp_path: Path
) -> None:
    """numpy's modules report that they cannot be loaded if a signal arrives meanwhile."""
    words = [INTERRUPTED_IMPORT, "runs", import_of_native_code]
    ended = warm.run("code", words, cwd=tmp_path, timeout_s=DEADLINE_S)
    assert (ended.returncode, ended.stdout) == (143, "")
    assert ended.stderr == "asyncrl: interrupted by SIGTERM\n"


FORKS = """
import os, signal
from asyncrl.cli.signals import raise_at_signals

raise_at_signals()
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGTERM)
"""


@pytest.mark.processes
def test_forked_children_of_a_command_answer_signals_as_others_do(tmp_path: Path) -> None:
    assert warm.run("code", [FORKS], cwd=tmp_path, timeout_s=DEADLINE_S).returncode == 0
