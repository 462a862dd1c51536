"""The command line on machines as people have them: a row for each, run by a shell.

All rows but those that are marked as usual are slow tests. After each, no process and no temporary
file may be left.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import pytest

from benchmarks.machines import Machine, Unavailable, machine, marked
from tests.cli.console import TINY
from tests.support.helpers import wait_until

DEADLINE_S = 300.0

# `begin` starts a run that continues until a signal ends it. `waits` fails once its run has ended.
FUNCTIONS = f"""
tiny="dqn {" ".join(TINY)}"
odd() {{ echo --env benchmarks.misbehaving_env:MisbehavingEnv --env-kwargs do "$@"; }}
short() {{ asyncrl train $tiny --run-dir x --max-opt-steps 50 "$@"; }}
begin() {{ asyncrl train $tiny --run-dir x --max-seconds 60 "$@" & pid=$!; }}
learns() {{ waits 'grep -qs "opt_steps.: [1-9]" x/metrics.jsonl'; }}
ends() {{ kill -TERM $pid; exits 143 wait $pid; }}
first() {{ unshare --pid --fork --mount-proc --kill-child "$@" & pid=$!; }}
waits() {{ until eval "$1"; do kill -0 $pid; sleep 0.1; done; }}
exits() {{ local code=0 want=$1; shift; "$@" || code=$?; [ $code = $want ] || exit 99; }}
hears() {{ waits 'grep -qs "SigCgt:.*[4-7c-f]...$" /proc/$(child)/status'; }}
works() {{ waits '[ -n "$(ls tmp)" ]'; }}
child_ends() {{ kill -TERM $(child); exits 143 wait $pid; }}
child() {{ local found=; read -r found < /proc/$pid/task/$pid/children; echo $found; }}
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

    deadline_s: float = DEADLINE_S

    usual: bool = False
    """Whether the row is no slow test."""


TRAINED = ("x/checkpoints/best", "x/checkpoints/50", "x/summary.json")

ROWS = {
    "other user in a container": Row(
        on=("another user", "no home", "no names", "full shared memory", "LANG=C"),
        runs="short; asyncrl eval x --json; asyncrl export x --to exported.npz",
        says=r"run ended: 50 optimisation steps are done[^{]*\{\"score\": ",
        leaves=(*TRAINED, "exported.npz"),
    ),
    "read-only working directory": Row(
        on=("another user", "read-only directory"),
        runs="exits 2 short; (cd tmp; short); asyncrl eval tmp/x",
        says=r"Read-only file system",
        not_there=("x",),
    ),
    "the commands of the README": Row(
        on=("another user", "no home", "no names", "64 MB of shared memory", "LANG=C"),
        runs="root=$PYTHONPATH; unset PYTHONPATH; mkdir clone; tar -C $root --exclude=./.[a-z]*"
        " --exclude=__pycache__ -c . | tar -C clone -x;"
        f"cd clone; export PYTHON={sys.base_prefix}/bin/python3;"
        "make train ARGS='--max-opt-steps 50';"
        "make test ARGS='-n 0 tests/core tests/cli/test_eval.py'",
        says="(?s)run ended: 50 optimisation steps are done.* passed",
        never="Traceback|error:",
        deadline_s=600.0,
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
        says=r"(?s)of 1\.0 GiB available \(limit.* be rejected.*capacity=20000000 needs.* is ready",
    ),
    "half a core": Row(
        on=("half a core",), runs="short; asyncrl doctor", says="CPU quota of 0.5", leaves=TRAINED
    ),
    "just enough tasks and descriptors": Row(
        on=("24 tasks", "34 descriptors"),  # one of the tasks is the shell
        runs="asyncrl doctor; short --actors 2",
        says=r"(?s)23 of 24 processes .* about 2 actors.* 34 may be open, .* about 2 actors",
        never=r"Traceback|\[Errno|WARNING",
        leaves=TRAINED,
    ),
    "too few tasks": Row(on=("10 tasks",), runs="asyncrl doctor", code=1, says="fail  processes"),
    "64 processes": Row(
        on=("another user", "64 processes"),
        runs="asyncrl doctor; short",
        says=r"of 64 processes and threads may be started \(ulimit -u\)",
        leaves=TRAINED,
    ),
    "64 descriptors": Row(on=("64 descriptors",), runs="short --actors 4", leaves=TRAINED),
    "3 GB of addresses": Row(on=("3 GB of addresses",), runs="short", leaves=TRAINED),
    "nohup": Row(
        runs="nohup asyncrl train $tiny --run-dir x --max-seconds 60 & pid=$!; learns;"
        "kill -HUP $pid; kill -USR1 $pid; waits '[ -n \"$(ls x/checkpoints)\" ]';"
        "kill -TERM $pid; exits 143 wait $pid",
        says="run ended: interrupted by SIGTERM",
    ),
    "moved and copied": Row(
        runs="short; mv x y; cp -r y a; cp -rL y b; tar cf y.tar y; mkdir c; tar xf y.tar -C c;"
        "python -m zipfile -c z.zip y; python -m zipfile -e z.zip d;"
        "for each in y a b c/y d/y; do asyncrl eval $each --episodes 2; done;"
        "asyncrl resume c/y --max-opt-steps 100",
        leaves=("c/y/checkpoints/100",),
    ),
    # --- environments --------------------------------------------------------------------------
    "thread that does not end": Row(
        runs="odd=$(odd thread at make); short $odd; asyncrl eval x --episodes 1; asyncrl export x;"
        "asyncrl bench env $odd --seconds 1",
        leaves=TRAINED,
    ),
    "constructor ignores signals": Row(
        runs="begin $(odd ignore-signals at make); learns; ends", leaves=("x/summary.json",)
    ),
    "examination ends with code 0": Row(
        runs="exits 1 asyncrl doctor $(odd exit-0 after 100 | cut -c6-) --seconds 0.5",
        says="exit code 0",
    ),
    "environment prints": Row(
        runs="short --quiet $(odd print) > out; asyncrl eval x --json > json;"
        "python -m json.tool json; asyncrl bench env $(odd print-native) --json > json;"
        "python -m json.tool json; exits 1 grep word out",
        says="actor 0: a word of the environment",
    ),
    "fork in reset": Row(runs="short $(odd fork at reset)", leaves=TRAINED),
    "close hangs at first": Row(
        runs="exits 1 short --debug --supervision.start-timeout-s 4 $(odd sleep at close)",
        says=r"(?s)building the environment took more than 4 s.* in sleep\n",
        never="(?!)",
        not_there=("x",),
    ),
    "close hangs at last": Row(
        runs="begin --grace-s 8 $(odd sleep at close when hang); learns; touch hang; ends",
        leaves=("x/checkpoints/[0-9]*",),
    ),
    # --- runs and their directories ------------------------------------------------------------
    "another local user": Row(
        on=("root",),
        runs="other() { exits $1 setpriv --reuid 23456 --regid 23456 --clear-groups ${@:2} ; };"
        "begin; learns; chmod 755 .; other 2 ls x; other 2 ls tmp/asyncrl-*;"
        "other 1 cat /proc/$pid/environ; other 2 ls /proc/$pid/fd; ends",
        says="(?s)(?:Permission denied.*){4}",
        leaves=("x/summary.json",),
    ),
    "wheel in an empty directory": Row(
        runs="mkdir sources empty; tar -C $PYTHONPATH --exclude=./.venv --exclude=./.git"
        " --exclude=__pycache__ -c . | tar -C sources -x; python -m venv fresh;"
        "export PYTHONPATH=$(python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))');"
        "fresh/bin/pip install --no-deps ./sources; rm -r sources; cd empty;"
        "PATH=../fresh/bin:$PATH; short; asyncrl eval x; asyncrl export x;"
        "python -c 'import asyncrl; print(asyncrl.__file__)'",
        says="fresh/lib/",
        leaves=("empty/x/checkpoints/best", "empty/policy.npz"),
    ),
    "run directory is removed": Row(
        runs="begin --save.interval-opt-steps 50; learns; rm -rf x || true; ends",
        leaves=("x/checkpoints/[0-9]*",),
    ),
    "run directory is renamed": Row(
        runs="begin --save.interval-opt-steps 50; learns; mv x y; ends",
        leaves=("[xy]/checkpoints/[0-9]*",),
        never="(?!)",
    ),
    "killed while it tunes": Row(
        runs="asyncrl train dqn --env CartPole-v1 --actors auto --run-dir x & pid=$!;works; ends",
        not_there=("x",),
    ),
    # --- output --------------------------------------------------------------------------------
    "ascii": Row(
        on=("ascii",),
        runs="asyncrl doctor CartPole-v1 --seconds 0.5; asyncrl bench env --seconds 1;"
        "asyncrl train dqn --help > help; exits 1 short $(odd raise-wide after 50);"
        "[ -s x/error.txt ]",
        says="the wheel ist m.*de",
    ),
    "C locale": Row(
        on=("C locale",),
        runs="asyncrl train dqn --help > help; asyncrl doctor CartPole-v1 --seconds 0.5; short",
    ),
    "reader has gone": Row(runs="set +o pipefail; short | head -2", never="Traceback|Broken"),
    "no terminal": Row(
        runs="short --max-opt-steps 1000 > out; [ $(grep -c 'fps' out) -le 3 ]",
        leaves=("x/summary.json",),
    ),
    "terminal": Row(
        runs="for size in 'cols 100 rows 30' 'cols 40 rows 12'; do script -qec"
        ' "stty $size; asyncrl train $tiny --max-opt-steps 50" log; tail -c 3000 log >> end; done;'
        "grep -q $'\\e\\[?25h' end; unset TERM; short > out; exits 1 grep $'\\e' out"
    ),
    # --- limits --------------------------------------------------------------------------------
    "full run disk": Row(
        on=("full disk",),
        runs="begin --run-dir disk/x --save.interval-opt-steps 50 --agent.hidden 128 128 2> log;"
        "waits 'ls disk/x/checkpoints/[0-9]*'; cat /dev/zero > disk/filler || true;"
        "waits 'grep -q cannot log'; kill -TERM $pid; exits 1 wait $pid; cat log",
        says="No space left on device",
        never="(?!)",
    ),
    # --- temporary files -----------------------------------------------------------------------
    "no temporary directory": Row(
        on=("missing TMPDIR", "read-only /tmp", "read-only directory"),
        runs="exits 2 short --run-dir tmp/x; exits 1 asyncrl doctor",
        says="(?s)TMPDIR.*TMPDIR",
    ),
    "temporary directory removed": Row(
        runs="begin; learns; rm -r tmp/asyncrl-*; helper=$(pgrep -P $pid -f 'asyncrl helper');"
        "kill -KILL $(pgrep -P $helper -f 'asyncrl actor 0'); exits 1 wait $pid",
        says="TMPDIR|temporary",
        never="(?!)",
    ),
    # --- containers ----------------------------------------------------------------------------
    "eval as the first process": Row(
        on=("root",), runs="short; first asyncrl eval x --episodes 1000000; works; child_ends"
    ),
    "doctor as the first process": Row(
        on=("root",),
        runs="first asyncrl doctor CartPole-v1 --seconds 60; works; child_ends",
        says="asyncrl: interrupted by SIGTERM",
    ),
    "train as the first process": Row(
        on=("root",),
        runs="first asyncrl train $tiny --run-dir x; learns; child_ends",
        leaves=("x/summary.json",),
    ),
    "first moment as the first process": Row(
        on=("root",), runs="first asyncrl train $tiny --run-dir x; hears; child_ends", usual=True
    ),
}


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path: sockets have no room for long ones."""
    with TemporaryDirectory(prefix="m") as directory:
        yield Path(directory)


@pytest.mark.processes
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.timeout(row.deadline_s + DEADLINE_S),
                *([] if row.usual else [pytest.mark.slow]),
            ],
        )
        for name, row in ROWS.items()
    ],
)
def test_row(name: str, place: Path) -> None:
    row = ROWS[name]
    with ExitStack() as stack:
        try:
            on = stack.enter_context(machine(place, "own TMPDIR", *row.on))
        except Unavailable as error:
            pytest.skip(str(error))
        code, output = outcome(on, row)
        assert code == row.code, output
        assert re.search(row.says, output), output
        assert not re.search(row.never, output), output
        for pattern in row.leaves:
            assert [*place.glob(pattern)], f"{pattern}: {output}"
        for pattern in row.not_there:
            assert not [*place.glob(pattern)], pattern
        wait_until(lambda: not marked(on.mark), DEADLINE_S, "processes to end")
        assert not [*place.glob("tmp/*asyncrl*")]


def outcome(on: Machine, row: Row) -> tuple[int, str]:
    """Return the exit code of commands, and what they wrote."""
    command = ["bash", "-euo", "pipefail", "-c", FUNCTIONS + row.runs]
    with TemporaryFile("w+") as output:
        with on.start(command, stdout=output, stderr=subprocess.STDOUT) as process:
            try:
                code = process.wait(row.deadline_s)
            finally:
                process.kill()
        output.seek(0)
        return code, output.read()
