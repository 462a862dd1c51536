"""Fixtures for all tests: a quiet machine, and proof that nothing outlives a test."""

from __future__ import annotations

import os

# Before torch is imported anywhere, here or in a child: tests are small, and cores are few.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# What programs print waits in a buffer, as users have it, also where this is set for our own words.
os.environ.pop("PYTHONUNBUFFERED", None)

import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from asyncrl.fleet import local
from tests.support import scale, warm
from tests.support.helpers import wait_until
from tests.support.leftovers import added_shared_memory, children, shared_memory

# Containers often forbid it, and then all assertions are rewritten in each run, by each worker.
sys.dont_write_bytecode = False

# Other runs of this suite, and other programs, use other directories for temporary files.
_SCRATCH = tempfile.mkdtemp(prefix="tests-")
os.environ["TMPDIR"] = tempfile.tempdir = _SCRATCH

# `nohup` and a script's `&` have these ignored, which a command rightly leaves as it is; tests send
# them, to themselves and to what they start.
for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

_STARTS_PROCESSES = (
    "tests/tools/bench/test_stages.py",
    *(f"tests/cli/test_{name}.py" for name in "join learners main modes resume tune".split()),
    "tests/cli/test_report.py::test_what_cannot_be_served",
    "tests/cli/test_schedule_flags.py::test_the_user",
    *(f"tests/cli/test_train.py::test_{name}" for name in "directory place run_dir search".split()),
    "tests/contracts/test_launcher.py",
    "tests/core/test_given.py::test_part_that_is_none",
    "tests/faults/",
    "tests/integration/",
    "tests/fleet/test_bodies.py",
    "tests/fleet/test_local.py",
)
_LEARNS = (
    "tests/agents/",
    "tests/contracts/test_agent.py",
    "tests/contracts/test_learner.py",
    "tests/export/",
    "tests/run/",
)
_LEFTOVERS_DEADLINE_S = 15.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer a size of the tests that draw examples, or repeat something."""
    parser.addoption(
        "--scale", choices=("usual", "full"), default="usual", help="how many examples are drawn"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set the size before the tests' modules are loaded, which ask for it."""
    scale.full = config.getoption("--scale") == "full"
    # How long an example takes says more about the machine than about the code.
    settings.register_profile("asyncrl", deadline=None, max_examples=scale.examples(100))
    settings.load_profile("asyncrl")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whole folders."""
    for item in items:
        if item.nodeid.startswith(_STARTS_PROCESSES):
            item.add_marker("processes")
        if item.nodeid.startswith(_LEARNS):
            item.add_marker("learning")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need a GPU if torch sees none."""
    if item.get_closest_marker("gpu") and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("needs a GPU")


def pytest_unconfigure() -> None:
    """Remove the scratch directory."""
    shutil.rmtree(_SCRATCH, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _warm_process() -> Iterator[None]:
    """Keep a process that has loaded torch; launchers' helpers, for one, are forked from it."""
    if not warm.AVAILABLE:
        yield
        return
    with warm.listening(Path(_SCRATCH)), pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "_start_server", warm.start_server)
        yield


@pytest.fixture
def fresh_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start launchers' helpers as users have them."""
    monkeypatch.setattr(local, "_start_server", warm.start_fresh)


@pytest.fixture(autouse=True)
def no_leftovers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check, for tests that start processes, that all they started is gone afterwards."""
    if not request.node.get_closest_marker("processes"):
        yield
        return
    before, shared_before = _traces(), shared_memory()

    def left() -> set[str]:
        shared = {f"shared memory {path}" for path in added_shared_memory(shared_before)}
        return (_traces() - before) | shared

    yield
    with suppress(TimeoutError):
        wait_until(lambda: not left(), _LEFTOVERS_DEADLINE_S, "nothing left over")
        return
    if words := sorted(left()):
        pytest.fail("left over after the test:\n  " + "\n  ".join(words), pytrace=False)


def _traces() -> set[str]:
    return {*_children(), *_threads(), *_files()}


def _children() -> Iterator[str]:
    for child in children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            yield f"process {child.pid}: {' '.join(child.cmdline())[:200]}"


def _threads() -> Iterator[str]:
    for thread in threading.enumerate():
        if not thread.daemon:
            yield f"thread {thread.name}"


def _files() -> Iterator[str]:
    temporary = Path(tempfile.gettempdir())
    yield from (f"temporary file {path}" for path in temporary.glob("asyncrl-*"))
