"""Films during training: beside the scores, without changing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.errors import ConfigError
from asyncrl.core.evaluator import Evaluation, film_path
from asyncrl.core.types import Array
from asyncrl.envs import film
from asyncrl.learner.train_result import TrainResult
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.filming import MakeFilming, discard_films
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer
from tests.envs.test_film import frames_of

pytest.importorskip("av")

EPISODE = 6


class Lit(gymnasium.Env[Any, Any]):
    """Rewards depend on actions and on random numbers of the episode; so do observations."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, breaks: bool = False) -> None:
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
        self.render_mode = render_mode
        self.breaks = breaks
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.breaks and self.render_mode and self.steps == 3:
            raise OSError("the lamp is broken")
        reward = float(action) + float(self.np_random.random())
        return self._obs(), reward, False, self.steps == EPISODE, {}

    def _obs(self) -> Array:
        return self.np_random.normal(size=2).astype(np.float32).clip(-9, 9)

    def render(self) -> Array:  # type: ignore[override]
        return np.full((64, 96, 3), 30 * self.steps, np.uint8)


class Dark(Lit):
    """Has no pictures."""

    def __init__(self) -> None:
        super().__init__()


def config_of(mode: Any = "sync", name: str = "Lit", **changed: Any) -> RunConfig:
    start = RunConfig(
        mode=mode,
        agent=DQNConfig(hidden=(8,), device="cpu"),
        env=f"{__name__}:{name}",
        actors=1,
        envs_per_actor=2,
        replay=UniformReplayConfig(capacity=1000),
        evaluate=EvaluationConfig(interval_opt_steps=4),
        max_opt_steps=16,
        video_interval_opt_steps=8,
    )
    start = replace(
        start,
        limiter=replace(start.limiter, min_size=64),
        trainer=replace(start.trainer, batch_size=8),
        record=replace(start.record, interval_s=0.0, interval_opt_steps=4),
    )
    return replace(start, **changed)


def train(config: RunConfig, videos: Path) -> tuple[TrainResult, list[Mapping[str, float]]]:
    recorder = MemoryRecorder()
    result = build_trainer(config, recorder=recorder, video_dir=videos).train()
    return result, [record for record in recorder.records if "eval_reward" in record]


@pytest.mark.processes
def test_environment_without_pictures_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Dark .* render_mode"):
        build_trainer(config_of(name="Dark"), video_dir=tmp_path)


@pytest.mark.processes
def test_scores_are_those_of_a_run_that_is_not_filmed(tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    names = ("opt_steps", "env_steps", "eval_reward", "eval/return_min")
    _, filmed = train(config_of(), videos)
    _, plain = train(config_of(video_interval_opt_steps=0), tmp_path / "none")
    assert [[one[n] for n in names] for one in filmed] == [[one[n] for n in names] for one in plain]
    assert len(filmed) == 4
    assert sorted(path.name for path in videos.iterdir()) == ["16.mp4", "8.mp4"]
    frames = frames_of(videos / "8.mp4")
    means = [frame.mean() for frame in frames]
    np.testing.assert_allclose(means, 30 * np.arange(1, EPISODE + 1), atol=4)


@pytest.mark.processes
def test_evaluating_process_films(tmp_path: Path) -> None:
    config = config_of("async", video_interval_opt_steps=1)
    config = replace(config, evaluate=replace(config.evaluate, final_timeout_s=300.0))
    _, evaluations = train(config, tmp_path)
    assert evaluations
    for evaluation in evaluations:
        path = film_path(tmp_path, int(evaluation["eval/model_version"]))
        assert len(frames_of(path)) == EPISODE, "it is complete before the score is recorded"


@pytest.mark.processes
def test_film_that_fails_costs_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(env_kwargs={"breaks": True})
    result, evaluations = train(config, tmp_path / "videos")
    assert result.opt_steps == 16
    assert len(evaluations) == 4
    assert not list(tmp_path.iterdir())
    assert "no film of the model after 8 optimisation steps: OSError: the lamp" in caplog.text
    assert "no film of the model after 16 " in caplog.text


@pytest.mark.parametrize("off", [{"where": "off"}, {"interval_opt_steps": 0}])
def test_run_without_evaluations_is_refused(off: Mapping[str, Any], tmp_path: Path) -> None:
    config = config_of()
    config = replace(config, evaluate=replace(config.evaluate, **off))
    with pytest.raises(ConfigError, match="video_interval_opt_steps is 8, but films are made by"):
        build_trainer(config, video_dir=tmp_path)


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(film.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"video_interval_opt_steps needs the package av"):
        build_trainer(config_of(), video_dir=tmp_path)


class Seven:
    def evaluate(self, _: object) -> Evaluation:
        return Evaluation(7.0, {})

    def close(self) -> None:
        """Nothing is open."""


def films_of(directory: Path, own: Any) -> MakeFilming:
    config = config_of()
    return MakeFilming(
        make_evaluator=Seven,
        own=own,
        env=config.eval_env_config(),
        config=config.evaluate,
        directory=directory,
        interval_opt_steps=8,
    )


def test_resumed_run_continues_at_its_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "9.mp4").touch()
    filmed: list[int] = []
    evaluator = films_of(tmp_path, None)()
    monkeypatch.setattr(evaluator, "_film", lambda _: filmed.append(evaluator._opt_steps))
    for opt_steps in (10, 15, 17, 23, 40, 41):
        evaluator.begin_evaluation(opt_steps)
        assert evaluator.evaluate(None).score == 7.0  # type: ignore[arg-type]
    assert filmed == [17, 40]


def test_films_of_discarded_models_are_removed(tmp_path: Path) -> None:
    for name in ("8.mp4", "16.mp4", ".24.mp4", "mine.mp4"):
        (tmp_path / name).touch()
    discard_films(tmp_path, 8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["8.mp4", "mine.mp4"]
    discard_films(tmp_path / "none", 0)
