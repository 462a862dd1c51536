"""What is forked from the warm process is a process like others."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support import warm
from tests.support.helpers import wait_until
from tests.support.leftovers import children

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not warm.AVAILABLE, reason="nothing is kept warm here"),
]

DEADLINE_S = 60.0


def test_child_has_a_separate_environment_output_and_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLOUR", "red")
    monkeypatch.syspath_prepend("/nowhere")
    code = """
import os, signal, sys
assert os.environ["COLOUR"] == "red" and "/nowhere" in sys.path and "torch" in sys.modules
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert not sys.stdin.read()
print(os.getcwd(), __name__)
held = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry)]
assert not any(place.startswith(("socket:", "pipe:")) for place in held), held
sys.exit(3)
"""
    done = warm.run("code", [code], cwd=tmp_path, timeout_s=DEADLINE_S)
    assert (done.returncode, done.stdout) == (3, f"{tmp_path} __main__\n"), done.stderr


def test_what_ends_it_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+b") as out:
        code = "import signal; print('ready', flush=True); signal.pause()"
        child = warm.fork("code", [code], [out.fileno()] * 3, cwd=str(tmp_path))
        wait_until((tmp_path / "out").read_text, DEADLINE_S, "its first word")
        assert child.pid in {process.pid for process in children()}, "it counts as the test's"
        assert child.poll() is None
        child.kill()
        assert child.wait(DEADLINE_S) == -signal.SIGKILL
    assert child.pid not in {process.pid for process in children()}


def test_it_may_end_and_restarts(tmp_path: Path) -> None:
    warm.end()
    commands = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    assert not any(warm.MODULE in command for command in commands)
    done = warm.run("code", ["print(1)"], cwd=tmp_path, timeout_s=DEADLINE_S)
    assert (done.stdout, done.returncode) == ("1\n", 0)


def test_it_does_not_outlive_the_one_that_started_it(tmp_path: Path) -> None:
    place = tmp_path / "words"
    code = f"""
import os, signal, time
from pathlib import Path
from tests.support import warm
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with warm.listening(Path({str(tmp_path)!r})):
    with open({str(place)!r}, "wb") as out:
        wait = (
            "import signal, time\\n"
            "print('waits for', signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True)\\n"
            "time.sleep(600)"
        )
        child = warm.fork("code", [wait], [out.fileno()] * 3)
    print(child.pid, flush=True)
    while not os.path.getsize({str(place)!r}):
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert place.read_text() == "waits for set()\n"
    wait_until(lambda: not psutil.pid_exists(int(done.stdout)), DEADLINE_S, "its end")
