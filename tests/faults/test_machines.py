"""The command line on machines as people have them: a row for each, run by a shell.

`--scale full` runs all rows, otherwise those that are marked as usual. After each, no process and
no temporary file may be left.
"""

from __future__ import annotations

import re
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from benchmarks.machines import Machine, Unavailable, machine, marked
from tests.cli.console import TINY
from tests.support import scale
from tests.support.helpers import wait_until

DEADLINE_S = 100.0
LEFTOVERS_DEADLINE_S = 10.0

# `begin` starts a run that goes on until it is told to end. `waits` fails once its run has ended.
FUNCTIONS = f"""
tiny="dqn {" ".join(TINY)} --run-dir x"
short() {{ asyncrl train $tiny --max-opt-steps 50 "$@"; }}
begin() {{ asyncrl train $tiny --max-seconds 60 "$@" & pid=$!; }}
waits() {{ until eval "$1"; do kill -0 $pid; sleep 0.1; done; }}
exits() {{ local code=0 want=$1; shift; "$@" || code=$?; [ $code = $want ] || exit 99; }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is run on a machine, and what must come of it."""

    on: tuple[str, ...] = ()
    """Traits of the machine."""

    runs: str
    """Commands for bash; the first that fails ends them, with its exit code."""

    code: int = 0
    says: str = ""
    """A pattern that must be in the output."""

    never: str = r"Traceback|\[Errno"
    """A pattern that must not be in the output."""

    leaves: tuple[str, ...] = ()
    """Patterns of paths that must be there, in the working directory."""

    not_there: tuple[str, ...] = ()
    """Patterns of paths that must not be there."""

    usual: bool = False
    """Whether the row is run without `--scale full`, too."""


TRAINED = ("x/checkpoints/best", "x/checkpoints/50", "x/summary.json")

ROWS = {
    "other user in a container": Row(
        on=("another user", "no home", "no names", "full shared memory", "LANG=C"),
        runs="short; asyncrl eval x --json; asyncrl export x --to exported.npz",
        says=r"run ended: 50 optimisation steps are done[^{]*\{\"score\": ",
        leaves=(*TRAINED, "exported.npz"),
        usual=True,
    ),
    "read-only working directory": Row(
        on=("another user", "read-only directory"),
        runs="exits 2 short; (cd tmp; short); asyncrl eval tmp/x",
        says=r"Read-only file system",
        not_there=("x",),
    ),
    "noexec TMPDIR": Row(on=("noexec TMPDIR",), runs="short", leaves=TRAINED),
    "full TMPDIR": Row(on=("full TMPDIR",), runs="short", leaves=TRAINED),
    "missing TMPDIR": Row(on=("missing TMPDIR",), runs="short", leaves=TRAINED),
    "read-only TMPDIR": Row(on=("read-only TMPDIR",), runs="short", leaves=TRAINED),
    "long TMPDIR": Row(on=("long TMPDIR",), runs="short", leaves=TRAINED),
    "long run directory with blanks": Row(
        runs='name="é $(printf %0100d 0)"; name="$name/$name/$name/$name"; short --run-dir "$name";'
        'asyncrl eval "$name"',
        leaves=("é */*/*/*/summary.json",),
    ),
    "read-only shared memory": Row(on=("read-only shared memory",), runs="short", leaves=TRAINED),
    "500 MB": Row(on=("500 MB",), runs="short --actors 2", leaves=TRAINED),
    "1 GiB is seen": Row(
        on=("1 GiB",),
        runs="exits 1 asyncrl doctor --preset dqn-atari;"
        "exits 2 short --replay.capacity 20000000; asyncrl doctor",
        says=r"(?s)of 1\.0 GiB available \(limit.* be refused.*capacity=20000000 needs.* is fit",
    ),
    "half a core": Row(
        on=("half a core",), runs="short; asyncrl doctor", says="CPU quota of 0.5", leaves=TRAINED
    ),
    "64 tasks": Row(on=("64 tasks",), runs="short", leaves=TRAINED),
    "just enough tasks and descriptors": Row(
        on=("24 tasks", "34 descriptors"),  # one of the tasks is the shell
        runs="asyncrl doctor; short --actors 2",
        says=r"(?s)23 of 24 processes .* about 2 actors.* 34 may be open, .* about 2 actors",
        never=r"Traceback|\[Errno|WARNING",
        leaves=TRAINED,
    ),
    "process 1 of a container": Row(
        on=("process 1",),
        runs="(until [ -s told ]; do sleep 0.1; done; kill -TERM 1) &"
        "exec asyncrl doctor CartPole-v1 --seconds 60 > told",
        code=143,
        says="asyncrl: interrupted by SIGTERM",
    ),
    "too few tasks": Row(on=("10 tasks",), runs="asyncrl doctor", code=1, says="fail  processes"),
    "64 processes": Row(
        on=("another user", "64 processes"),
        runs="asyncrl doctor; short",
        says=r"of 64 processes and threads may be started \(ulimit -u\)",
        leaves=TRAINED,
    ),
    "64 descriptors": Row(on=("64 descriptors",), runs="short --actors 4", leaves=TRAINED),
    "32 descriptors": Row(on=("32 descriptors",), runs="short --actors 2", leaves=TRAINED),
    "3 GB of addresses": Row(on=("3 GB of addresses",), runs="short", leaves=TRAINED),
    "nohup": Row(
        runs="nohup asyncrl train $tiny --max-seconds 60 & pid=$!; waits '[ -s x/metrics.jsonl ]';"
        "kill -HUP $pid; kill -USR1 $pid; waits '[ -n \"$(ls x/checkpoints)\" ]';"
        "kill -TERM $pid; exits 143 wait $pid",
        says="run ended: interrupted by SIGTERM",
    ),
    "job control": Row(
        runs="begin; waits '[ -s x/metrics.jsonl ]'; kill -STOP $pid; sleep 3; kill -CONT $pid;"
        "kill -TERM $pid; exits 143 wait $pid",
        says="run ended: interrupted by SIGTERM",
        leaves=("x/summary.json",),
    ),
    "moved and copied": Row(
        runs="short; mv x y; cp -r y a; cp -rL y b; tar cf y.tar y; mkdir c; tar xf y.tar -C c;"
        "python -m zipfile -c z.zip y; python -m zipfile -e z.zip d;"
        "for each in y a b c/y d/y; do asyncrl eval $each --episodes 2; done;"
        "asyncrl resume c/y --max-opt-steps 100",
        leaves=("c/y/checkpoints/100",),
    ),
}


@pytest.mark.processes
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if scale.full or row.usual])
def test_row(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    with ExitStack() as stack:
        try:
            on = stack.enter_context(machine(tmp_path, "own TMPDIR", *row.on))
        except Unavailable as error:
            pytest.skip(str(error))
        code, told = outcome(on, row.runs)
        assert code == row.code, told
        assert re.search(row.says, told), told
        assert not re.search(row.never, told), told
        for pattern in row.leaves:
            assert [*tmp_path.glob(pattern)], f"{pattern}: {told}"
        for pattern in row.not_there:
            assert not [*tmp_path.glob(pattern)], pattern
        wait_until(lambda: not marked(on.mark), LEFTOVERS_DEADLINE_S, "processes to end")
        assert not [*tmp_path.glob("tmp/*asyncrl-*")]


def outcome(on: Machine, runs: str) -> tuple[int, str]:
    """Return the exit code of commands, and what they wrote."""
    command = ["bash", "-euo", "pipefail", "-c", FUNCTIONS + runs]
    with TemporaryFile("w+") as output:
        with on.start(command, stdout=output, stderr=subprocess.STDOUT) as process:
            try:
                code = process.wait(DEADLINE_S)
            finally:
                process.kill()
        output.seek(0)
        return code, output.read()
