"""`asyncrl bench tune`: what it starts from and what it prints; its runs are simulated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.cli import train as train_command
from asyncrl.cli import tune as tune_command
from asyncrl.cli.tune import parse, run, tune
from asyncrl.core.errors import ActorFailed, ConfigError
from asyncrl.core.named import Named
from asyncrl.learner.config import RateLimiterConfig
from asyncrl.metrics import limits
from asyncrl.run.named_parts import NamedParts
from asyncrl.run.presets import preset
from asyncrl.run.run_config import RunConfig
from asyncrl.run.yaml_file import save_yaml
from asyncrl.tools.bench.trial import Trial
from asyncrl.tools.bench.tuner import Plan
from tests.tools.bench.worlds import World

COLLECTS = Named(
    "asyncrl.learner.async_trainer:CollectThenTrain", {"env_steps": 100, "opt_steps": 5}
)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Make no runs; return the settings of those that would have been made."""
    world = World(samples_per_insert=0.1, call_s=2e-3, message_s=2e-2)
    configs: list[RunConfig] = []

    def run_trial(_agent: Any, _make_env: Any, config: RunConfig, **_: Any) -> Trial:
        configs.append(config)
        plan = Plan(
            actors=config.actors,
            envs_per_actor=config.envs_per_actor,
            segment_length=config.segment.length,
        )
        return world.run_plan(plan)

    monkeypatch.setattr(tune_command, "run_trial", run_trial)
    return configs


def test_chosen_plan_is_in_the_settings_and_nothing_else_changes(tried: list[RunConfig]) -> None:
    start = preset("dqn")
    config, tuning = tune(start, seconds=60.0)
    chosen = tuning.chosen
    segment = replace(start.segment, length=chosen.segment_length)
    kept = replace(start, segment=segment, actors=chosen.actors)
    assert config == replace(kept, envs_per_actor=chosen.envs_per_actor)
    assert config.envs_per_actor > start.envs_per_actor
    assert config.segment.length > start.segment.length
    assert config in tried
    assert start in tried


def test_actors_are_within_limits(tried: list[RunConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "most_actors", lambda: 1)
    config, _ = tune(replace(preset("dqn"), actors=3), seconds=60.0)
    assert {one.actors for one in tried} == {config.actors} == {1}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parts": NamedParts(strategy=COLLECTS)}, "parts.strategy is .* cannot measure"),
        ({"parts": NamedParts(strategy=Named("nowhere:It"))}, "'nowhere:It': there is no module"),
        ({"launcher": "ray"}, "measure this machine, but with launcher=ray"),
    ],
)
def test_what_trials_cannot_measure_is_refused(
    tried: list[RunConfig], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        tune(replace(preset("dqn"), **changes), seconds=60.0)
    assert not tried


@pytest.mark.usefixtures("tried")
def test_trajectories_keep_their_length_and_messages_stay_below_a_batch() -> None:
    start = preset("appo")
    config, tuning = tune(start, seconds=60.0)
    assert config.segment.length == start.segment.length
    assert config.envs_per_actor * config.segment.length <= config.trainer.batch_size
    assert {tried.plan.segment_length for tried in tuning.tried} == {start.segment.length}


@pytest.mark.usefixtures("tried")
def test_file_of_any_preset_is_known_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    save_yaml(preset("appo"), path)
    assert parse(["--config", str(path)]).run.agent == "appo"
    assert parse(["ppo", "--config", str(path)]).run.agent == "ppo"


def test_people_read_a_table_a_sentence_and_a_command(
    tried: list[RunConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(parse(["dqn"])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "dqn on CartPole-v1, at most 60 s"
    end = lines.index("")
    assert end - 2 == len(tried), "a line for each run"
    assert lines[end + 1].startswith("chose ")
    command = lines[end + 2].split()
    assert command[:3] == ["asyncrl", "train", "dqn"]
    assert "--envs-per-actor" in command
    assert "explore differently" in lines[-1]


@pytest.mark.usefixtures("tried")
def test_plan_that_cannot_be_run_has_a_line_of_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_trial = tune_command.run_trial

    def runs_out(agent: Any, make_env: Any, config: RunConfig, **how: Any) -> Trial:
        if config.envs_per_actor > preset("dqn").envs_per_actor:
            raise ActorFailed("actor 0 was killed by SIGKILL\n\nits traceback")
        return run_trial(agent, make_env, config, **how)

    monkeypatch.setattr(tune_command, "run_trial", runs_out)
    assert run(parse(["dqn"])) == 0
    lines = capsys.readouterr().out.splitlines()
    (failed,) = (line for line in lines if "cannot run" in line)
    assert failed.split()[:3] == ["1", "64", "16"]
    assert failed.endswith("cannot run: actor 0 was killed by SIGKILL")


@pytest.mark.parametrize("words", ["dqn --actors 3", "iql --mode async", "--env Taxi-v4"])
def test_command_of_the_choice_gives_the_chosen_settings(
    words: str, tried: list[RunConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    run(parse([*words.split(), "--json"]))
    printed = json.loads(capsys.readouterr().out)
    words = printed["command"].split()
    assert words[:2] == ["asyncrl", "train"]
    config = train_command.parse(words[2:]).config
    assert (config.actors, config.envs_per_actor) == (printed["actors"], printed["envs_per_actor"])
    assert config.segment.length == printed["segment_length"]
    assert config in tried


def test_file_gives_the_settings(
    tried: list[RunConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    config = RunConfig(
        agent=DQNConfig(hidden=(7,)), limiter=RateLimiterConfig(samples_per_insert=3.0)
    )
    save_yaml(config, path)
    run(parse(["--config", str(path), "--json"]))
    assert f"--config {path}" in json.loads(capsys.readouterr().out)["command"]
    assert {trying.agent for trying in tried} == {config.agent}
    with pytest.raises(ConfigError, match="trains DQNConfig, but sac is SACConfig"):
        parse(["sac", "--config", str(path)])
