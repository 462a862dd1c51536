"""One small run that several tests look at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.console import TINY, run


class Trained(NamedTuple):
    """A run that has ended, and what it wrote to its terminal."""

    directory: Path
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="package")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train for 300 optimisation steps. Tests must leave the run as it is."""
    cwd = tmp_path_factory.mktemp("trained")
    done = run("train", "dqn", *TINY, "--max-opt-steps", "300", "--run-dir", "runs/x", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return Trained(cwd / "runs/x", done)


@pytest.fixture(autouse=True)
def _own_module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what the command line does to `sys.path`, for users' modules, in this process."""
    monkeypatch.setattr(sys, "path", [*sys.path])
