"""The script of `asyncrl completion`, run by bash."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from asyncrl.cli.main import main
from asyncrl.training.presets import PRESETS

ASK = (
    'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
    '_asyncrl; echo "${COMPREPLY[@]}"'
)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "asyncrl"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr("sys.stdout", file)
        assert main(["completion"]) == 0
    return path


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        (["tra"], ["train"]),
        (["be"], ["bench"]),
        (["train", "sac-"], [name for name in PRESETS if name.startswith("sac-")]),
        (["train", "dqn", "--act"], ["--actors"]),
        (["train", "sac", "--agent.actor-pri"], ["--agent.actor-priorities"]),
        (["resume", "runs/x", "--no-load"], ["--no-load-replay"]),
        (["eval", "runs/x", "--vid"], ["--video"]),
        (["eval", "runs/x", "--save"], []),
        (["report", "runs/x", "--ou"], ["--output"]),
        (["eval", "runs/x", "mine"], []),
    ],
)
def test_words_are_completed(script: Path, line: list[str], completed: list[str]) -> None:
    words = ["bash", "-c", ASK, "bash", str(script), "asyncrl", *line]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == completed
    assert not done.stderr
