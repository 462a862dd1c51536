"""Commands that hang or leave processes behind are ended, and leave nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.peers.apart import _marked, run_apart

pytestmark = pytest.mark.processes

SCRIPT = """
import json, os, subprocess, sys, time
from pathlib import Path

subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
Path(sys.argv[1]).write_text(os.environ["ASYNCRL_PEER_DIRECTORY"])
if sys.argv[2] == "hang":
    time.sleep(600)
if sys.argv[2] == "fail":
    raise ValueError("too small")
print("noise")
print(json.dumps({"here": os.getcwd()}), flush=True)
"""


def command(tmp_path: Path, how: str) -> list[str]:
    return [sys.executable, "-c", SCRIPT, str(tmp_path / "started"), how]


def left_behind(tmp_path: Path) -> list[tuple[int, str]]:
    started = tmp_path / "started"
    if not started.exists():
        return []
    directory = Path(started.read_text(encoding="utf-8"))
    assert not directory.exists()
    return list(_marked(directory))


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("how", "limit_s", "why"),
    [
        ("measure", 60.0, ""),
        ("hang", 3.0, "did not end within 3 s"),  # one that has not begun by then is ended as well
        ("fail", 60.0, "ended with 1, saying: ValueError: too small"),
    ],
)
def test_nothing_is_left_behind(tmp_path: Path, how: str, limit_s: float, why: str) -> None:
    printed, said = run_apart(command(tmp_path, how), limit_s)
    assert said == why
    assert list(printed) == ([] if why else ["here"])
    assert not left_behind(tmp_path)
