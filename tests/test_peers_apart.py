"""Measurements that hang or leave processes behind are ended, and leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.apart import INSIDE
from tests.support.helpers import wait_until

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent
LIMIT_S = 5.0

SCRIPT = """
import os, subprocess, sys, time
from pathlib import Path
from benchmarks.peers.apart import run_apart

def main(directory):
    assert Path.cwd() == directory
    (directory / "left").touch()
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    Path(sys.argv[1]).write_text(str(directory))
    print("not what is asked for")
    if sys.argv[2] == "hang":
        time.sleep(600)
    if sys.argv[2] == "fail":
        raise SystemExit("for this reason")
    print('{"value": 1}', flush=True)
    os._exit(0)

run_apart(main, lambda reason: print("gave up:", reason), float(sys.argv[3]))
"""


def start(tmp_path: Path, how: str) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "directory"), how, str(LIMIT_S)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def left_behind(tmp_path: Path) -> list[str]:
    directory = Path((tmp_path / "directory").read_text(encoding="utf-8"))
    assert not directory.exists()
    mark = f"{INSIDE}={directory}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if mark in environment:
            found.append(process.name)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("how", "printed"),
    [
        ("measure", '{"value": 1}'),
        ("hang", f"gave up: ended by us after {LIMIT_S:g} s"),
        ("fail", "gave up: exit status 1: for this reason"),
    ],
)
def test_nothing_is_left_behind(tmp_path: Path, how: str, printed: str) -> None:
    with start(tmp_path, how) as process:
        output, _ = process.communicate()
    assert process.returncode == 0
    assert output.strip().startswith(printed)
    assert not left_behind(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_ends_all_when_it_is_ended(tmp_path: Path) -> None:
    with start(tmp_path, "hang") as process:
        told = tmp_path / "directory"
        wait_until(lambda: told.exists() and told.read_text(), LIMIT_S, "the measurement to start")
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 1
    assert not left_behind(tmp_path)
