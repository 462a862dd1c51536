"""`asyncrl eval`: the score of a model that a run has saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from asyncrl.actor.evaluator import EpisodeEvaluator
from asyncrl.agents.dqn import DQNConfig
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.cli.eval import EpisodeArguments
from asyncrl.cli.eval import evaluated as evaluated_here
from asyncrl.cli.main import main
from asyncrl.core.agent import Policy
from asyncrl.core.evaluator import Evaluation
from asyncrl.envs.spaces import spec_from_spaces
from asyncrl.learner.run_services import POLICY
from asyncrl.run.trained_policy import PolicyOf
from tests.cli.conftest import Trained, constant_run
from tests.cli.console import run
from tests.support.fake_envs import OBS_SPACE
from tests.support.fakes import ConstantConfig

pytestmark = pytest.mark.processes


def evaluated(trained: Trained, capsys: pytest.CaptureFixture[str], *flags: str) -> Any:
    assert main(["eval", str(trained.directory), "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_one_line_of_json_reports_the_score(trained: Trained) -> None:
    directory = trained.directory
    done = run("eval", directory.name, "--episodes", "3", "--json", cwd=directory.parent)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    shown = json.loads(line)
    assert shown["episodes"] == 3
    assert (
        shown["opt_steps"] == Checkpointer(directory / "checkpoints").load("best").meta["opt_steps"]
    )
    summary = json.loads((directory / "summary.json").read_text())
    assert shown["score"] == summary["best_score"], "as the run says it did"
    assert 1.0 <= shown["eval/return_min"] <= shown["score"] <= shown["eval/return_max"] <= 500.0


def test_model_that_plays_is_the_one_that_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actions = {"best": 4, "20": 1}
    constant_run(tmp_path, actions)
    for name, action in actions.items():
        assert main(["eval", str(tmp_path), "--checkpoint", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["score"] == 3 * 10 * action + 6


def test_checkpoint_that_an_active_run_deletes_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    constant_run(tmp_path, dict.fromkeys(("10", "20", "30"), 1))
    evaluate = EpisodeEvaluator.evaluate

    def delete_and_evaluate(self: EpisodeEvaluator, policy: Policy) -> Evaluation:
        (tmp_path / "checkpoints" / "20").unlink(missing_ok=True)
        return evaluate(self, policy)

    monkeypatch.setattr(EpisodeEvaluator, "evaluate", delete_and_evaluate)
    all_of_them = EpisodeArguments(run_dir=tmp_path, all_checkpoints=True, episodes=1)
    found = evaluated_here(all_of_them)
    assert [scored["opt_steps"] for scored in found] == [10, 30]
    assert "checkpoint 20 is not evaluated: the run has deleted it" in caplog.text


@pytest.mark.parametrize(
    ("faults", "code", "words"),
    [
        ("thread+chdir+ignore-signals+umask+spawn-children+print", 0, "a word of the environment"),
        ("exit-0", 1, "asyncrl: error: the evaluation failed: its process exited with code 0"),
    ],
)
def test_environment_that_does_unusual_things_is_played_in_a_child(
    faults: str, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = "benchmarks.misbehaving_env:MisbehavingEnv"
    constant_run(tmp_path, {"best": 1}, env=env, env_kwargs={"do": faults, "at": "make"})
    assert main(["eval", str(tmp_path), "--json", "--episodes", "1"]) == code
    out, err = capsys.readouterr()
    assert words in err
    assert (json.loads(out)["score"] if out else None) == (None if code else 10.0)


def test_same_model_and_seed_give_the_same_score(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    first = evaluated(trained, capsys)
    assert first["episodes"] == 10
    assert main(["eval", str(trained.directory)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{first['score']:.4g} mean return over 10 episodes (min ")
    assert evaluated(trained, capsys, "--seed", "1234") != first
    exploring = evaluated(trained, capsys, "--stochastic")
    assert exploring["eval/length_mean"] != first["eval/length_mean"], "as in training"


def sizes_in(video: Path) -> list[tuple[int, int]]:
    """Return width and height of each frame."""
    av = pytest.importorskip("av")
    with av.open(str(video)) as film:
        return [(frame.width, frame.height) for frame in film.decode(video=0)]


def test_video_has_a_frame_for_each_step_and_a_grid_all_episodes_side_by_side(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("av")
    video = tmp_path / "two.mp4"
    flags = ["--episodes", "2", "--video", str(video)]
    played = evaluated(trained, capsys, *flags)
    assert played == evaluated(trained, capsys, *flags[:2])
    frames = len(sizes_in(video))
    assert frames == 2 * played["eval/length_mean"]
    assert video.stat().st_size < 200 * frames + 20_000
    assert [path.name for path in tmp_path.iterdir()] == ["two.mp4"]
    assert evaluated(trained, capsys, *flags, "--grid", "8") == played
    assert {*sizes_in(video)} == {(2 * 600, 400)}


def test_film_of_all_checkpoints_shows_each_in_order(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("av")
    saved = Checkpointer(trained.directory / "checkpoints").load("300")
    checkpoints = Checkpointer(tmp_path / "checkpoints")
    groups = {"model": saved.group("model")}
    for steps in (1000, 300):
        checkpoints.save(str(steps), groups, {**saved.meta, "opt_steps": steps})
    (tmp_path / "config.yaml").write_bytes((trained.directory / "config.yaml").read_bytes())
    words = [str(tmp_path), "--all-checkpoints", "--episodes", "1", "--json"]
    assert main(["eval", *words, "--video", str(tmp_path / "learned.mp4")]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["opt_steps"] for line in lines] == [300, 1000]
    assert lines[0]["score"] == lines[1]["score"]
    frames = len(sizes_in(tmp_path / "learned.mp4"))
    assert frames == sum(line["eval/length_mean"] for line in lines)


@pytest.mark.slow
def test_run_on_an_atari_game_is_filmed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("av")
    pytest.importorskip("ale_py", reason="ale-py is not installed: pip install 'asyncrl[atari]'")
    flags = """
        dqn-atari --mode sync --env ALE/Breakout-v5 --env-kwargs max_frames 200 --quiet
        --max-opt-steps 2 --limiter.min-size 64 --replay.capacity 500 --trainer.batch-size 8
        --evaluate.play.episodes 1 --actors 1 --envs-per-actor 2
    """.split()
    run_dir, video = str(tmp_path / "run"), tmp_path / "game.mp4"
    assert main(["train", *flags, "--run-dir", run_dir]) == 0
    capsys.readouterr()
    assert main(["eval", run_dir, "--episodes", "1", "--json", "--video", str(video)]) == 0
    played = json.loads(capsys.readouterr().out)
    assert sizes_in(video) == [(160, 210)] * int(played["eval/length_mean"])


@pytest.mark.parametrize(
    ("flags", "error", "code"),
    [
        ("--video film.avi", "--video is film.avi; a video is an .mp4 file", 2),
        ("--video none/film.mp4", "--video is none/film.mp4, and there is no directory none", 2),
        ("--grid 2", "--grid has no effect without --video", 2),
        ("--seed -1", "--seed must be 0 or more, got -1", 2),
        ("--all-checkpoints --checkpoint 300", "--all-checkpoints excludes --checkpoint", 2),
        ("--checkpoint 77", "has no checkpoint 77; choose one of 300, best", 1),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    flags: str, error: str, code: int, trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(trained.directory), *flags.split()]) == code
    assert error in capsys.readouterr().err


def test_the_environment_may_be_made_with_other_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The arguments of training, those of its evaluations over them, and the command's over all."""
    for own, flags, who in (
        ({}, [], 4),
        ({"who": 7}, [], 7),
        ({"who": 7}, ["--env-kwargs", "who", "9"], 9),
        ({"who": 7}, ["--env-kwargs", "reuse", "True"], 7),
    ):
        constant_run(tmp_path, {"best": 0}, env_kwargs={"who": 4}, eval_env_kwargs=own)
        assert main(["eval", str(tmp_path), "--json", *flags]) == 0
        assert json.loads(capsys.readouterr().out)["score"] == 3 * 100 * who + 6


def test_newest_model_plays_and_is_named_without_a_best_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    constant_run(tmp_path, {"20": 20, "9": 9})
    assert main(["eval", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["score"] == 3 * 10 * 20 + 6
    (warning,) = caplog.messages
    assert "has no best model" in warning
    assert "using the newest, checkpoint 20" in warning
    assert main(["eval", str(tmp_path), "--checkpoint", "best"]) == 1
    assert "has no checkpoint best; choose one of 9, 20" in capsys.readouterr().err


@pytest.mark.fault("F37")
@pytest.mark.parametrize(
    ("group", "meta", "agent", "said"),
    [
        ("model", {"opt_steps": 1}, ConstantConfig(), "env_steps, a count, but does not"),
        ("agent", {"opt_steps": 1, "env_steps": 1}, ConstantConfig(), "should contain model"),
        ("model", {"opt_steps": 1, "env_steps": 1}, DQNConfig(), "does not fit"),
    ],
    ids=["no counter", "no model", "other networks"],
)
def test_checkpoint_that_cannot_be_used_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    group: str,
    meta: dict[str, Any],
    agent: Any,
    said: str,
) -> None:
    checkpoints = constant_run(tmp_path, {}, agent=agent)
    description = PolicyOf(agent, spec_from_spaces(OBS_SPACE, Discrete(5))).description
    checkpoints.save("best", {group: {"action": np.array(1)}}, {**meta, POLICY: description})
    for command in ("eval", "export"):
        assert main([command, str(tmp_path)]) == 1
        text = capsys.readouterr().err
        assert said in text
        assert f"cannot use checkpoint {tmp_path}/checkpoints/best: " in text
        assert "must be those of the training" in text
