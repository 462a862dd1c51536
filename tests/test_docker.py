"""The images are built elsewhere; here, what their files say is compared with the project."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from asyncrl.cli.train import parse
from asyncrl.training.run_config import RunConfig

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "docker").iterdir())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_usage_and_contents_fit_the_project(path: Path) -> None:
    text = path.read_text()
    usage = text.partition("\nARG ")[0].replace("\\\n", "").replace("#", "")
    (timeout_s,) = map(int, re.findall(r"--stop-timeout (\d+)", usage))
    assert timeout_s > RunConfig().grace_s, "a run has its whole grace"
    (command,) = re.findall(r"asyncrl:\w+ train (.*)", usage)
    assert parse(shlex.split(command)).agent == "dqn"

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    chosen = re.findall(r"EXTRAS=([\w,]+)", text)
    assert len(chosen) == 2, "the default, and an example"
    assert {name for names in chosen for name in names.split(",")} <= extras.keys()

    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
    assert [name for names in copied for name in names if not (ROOT / name).exists()] == []
