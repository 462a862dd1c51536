from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'asyncrl[mujoco]'")

_SCRIPT = """
import logging
logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(message)s")
from asyncrl.envs.gym import EnvConfig
EnvConfig(id="HalfCheetah-v5", n_envs=3).build().close()
import mujoco
hear = mujoco.get_mju_user_warning()
for _ in range(3):
    hear("the simulation is unstable")
"""


def test_each_warning_is_forwarded_once_and_leaves_no_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    said = [line for line in done.stderr.splitlines() if "MuJoCo: " in line]
    assert said[-1] == "WARNING MuJoCo: the simulation is unstable"
    assert len(said) == len(set(said))
    others = [line for line in done.stderr.splitlines() if line.startswith("WARNING: ")]
    assert not others, "MuJoCo has printed them itself"
    assert not list(tmp_path.iterdir())
