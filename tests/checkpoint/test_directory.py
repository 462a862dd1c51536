"""One run at a time uses a directory; a run that has ended locks out no other."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from asyncrl.checkpoint.directory import DirectoryLock
from asyncrl.core.errors import ConfigError

HOLDER = """
import sys
from pathlib import Path
from asyncrl.checkpoint.directory import DirectoryLock
DirectoryLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""

HOLDER_WITH_A_CHILD = """
import os, sys
from pathlib import Path
from asyncrl.checkpoint.directory import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
ready, begun = os.pipe()
if not os.fork():
    lock.release()
    os.write(begun, b".")
    sys.stdin.read()
    os._exit(0)
os.read(ready, 1)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.fault("F36")
def test_second_holder_gets_an_error_that_names_the_first(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path / "run")
    with pytest.raises(ConfigError, match=rf"run is in use by another run, process {os.getpid()} "):
        DirectoryLock(tmp_path / "run")
    lock.release()
    lock.release()
    DirectoryLock(tmp_path / "run").release()


def test_nothing_is_left_but_what_others_have_put_there(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path / "empty" / "run")
    lock.release()
    assert not (tmp_path / "empty/run").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "there").mkdir()
    DirectoryLock(tmp_path / "there").release()
    assert (tmp_path / "there").exists(), "it was before"
    (tmp_path / "full/of").touch()
    DirectoryLock(tmp_path / "full").release()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["of"]


@pytest.mark.fault("F36")
@pytest.mark.processes
@pytest.mark.parametrize("script", [HOLDER, HOLDER_WITH_A_CHILD], ids=["alone", "with_a_child"])
def test_killed_holder_lets_go_at_once(script: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"process {holder.pid} "):
            DirectoryLock(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait(20)
    DirectoryLock(tmp_path).release()


@pytest.mark.fault("F36")
def test_of_many_at_once_one_wins(tmp_path: Path) -> None:
    def race(_: int) -> DirectoryLock | None:
        try:
            return DirectoryLock(tmp_path / "run")
        except ConfigError:
            return None

    for _ in range(20):
        with ThreadPoolExecutor(20) as pool:
            winners = [lock for lock in pool.map(race, range(20)) if lock]
        assert len(winners) == 1
        winners[0].release()


@pytest.mark.fault("F17")
def test_lock_that_cannot_be_written_into_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", is_full)
        with pytest.raises(ConfigError, match="No space left on device"):
            DirectoryLock(tmp_path)
    DirectoryLock(tmp_path).release()
