"""One small run that several tests look at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.run.run_config import RunConfig
from asyncrl.run.yaml_file import save_yaml
from tests.cli.console import TINY, run
from tests.support.fakes import ConstantConfig


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


def constant_run(run_dir: Path, actions: Mapping[str, int], **settings: Any) -> Checkpointer:
    """Write a run whose models take these actions; return its checkpoints.

    Three steps of its environment pay 10 times the action and 1, 2, 3.
    """
    usual = {"agent": ConstantConfig(), "env": "tests.support.fake_envs:TellingEnv"}
    save_yaml(RunConfig(**{**usual, **settings}), run_dir / "config.yaml")
    checkpoints = Checkpointer(run_dir / "checkpoints")
    for name, action in actions.items():
        meta = {"opt_steps": int(name) if name.isdigit() else 20, "env_steps": 0}
        checkpoints.save(name, {"model": {"action": np.array(action)}}, meta)
    return checkpoints


@pytest.fixture(autouse=True)
def _own_module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what the command line does to `sys.path`, for users' modules, in this process."""
    monkeypatch.setattr(sys, "path", [*sys.path])
