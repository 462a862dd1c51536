"""`asyncrl eval`: the score of a model that a run has saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.checkpoint import Checkpointer
from asyncrl.cli.main import main
from asyncrl.cli.run_config import RunConfig
from asyncrl.config import save_yaml
from tests.cli.conftest import Trained
from tests.cli.console import run
from tests.fakes import ConstantConfig

pytestmark = pytest.mark.processes


def evaluated(trained: Trained, capsys: pytest.CaptureFixture[str], *flags: str) -> Any:
    assert main(["eval", str(trained.directory), "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_one_line_of_json_tells_the_score(trained: Trained) -> None:
    directory = trained.directory
    done = run("eval", directory.name, "--episodes", "3", "--json", cwd=directory.parent)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    shown = json.loads(line)
    assert shown["episodes"] == 3
    assert (
        shown["opt_steps"] == Checkpointer(directory / "checkpoints").load("best").meta["opt_steps"]
    )
    assert 1.0 <= shown["eval/return_min"] <= shown["score"] <= shown["eval/return_max"] <= 500.0


def test_model_that_plays_is_the_one_that_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three steps pay 10 times the action and 1, 2, 3; the model's one parameter is the action."""
    env = "tests.fake_envs:TellingEnv"
    save_yaml(RunConfig(agent=ConstantConfig(), env=env), tmp_path / "config.yaml")
    for name, action in (("best", 4), ("20", 1)):
        checkpoints = Checkpointer(tmp_path / "checkpoints")
        checkpoints.save(name, {"model": {"action": np.array(action)}}, {"opt_steps": 20})
        assert main(["eval", str(tmp_path), "--checkpoint", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["score"] == 3 * 10 * action + 6


def test_same_model_and_seed_give_the_same_score(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    first = evaluated(trained, capsys)
    assert first["episodes"] == 10
    assert evaluated(trained, capsys) == first
    assert evaluated(trained, capsys, "--seed", "1234") != first


def test_best_model_scores_what_the_run_says_it_did(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = json.loads((trained.directory / "summary.json").read_text())
    assert evaluated(trained, capsys, "--episodes", "3")["score"] == summary["best_score"]


def test_any_checkpoint_can_be_evaluated(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluated(trained, capsys, "--checkpoint", "300")["opt_steps"] == 300


def test_people_read_a_sentence(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    score = evaluated(trained, capsys)["score"]
    assert main(["eval", str(trained.directory)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{score:.1f} mean return over 10 episodes (min ")


def test_checkpoint_that_is_not_there_is_named_with_those_that_are(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(trained.directory), "--checkpoint", "77"]) == 1
    text = capsys.readouterr().err
    assert "no checkpoint" in text
    assert "77; also there: 300, best" in text
