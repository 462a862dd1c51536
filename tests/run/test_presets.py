"""What settings start from: presets, custom agents, another kind of replay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.rainbow import RainbowConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import from_plain, to_plain
from asyncrl.learner.config import RateLimiterConfig
from asyncrl.learner.stop_conditions import MaxEnvSteps, ReachesUpperBound
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.run.presets import load_over, preset, preset_like, preset_lines, with_replay
from asyncrl.run.run_config import RunConfig
from asyncrl.run.train import build_trainer, train
from tests.support.fakes import ConstantConfig


def test_presets_are_complete() -> None:
    assert (preset("dqn").agent, preset("dqn").env) == (DQNConfig(), "CartPole-v1")
    assert isinstance(preset("sac").agent, SACConfig)
    assert preset("sac").env == "Pendulum-v1"
    atari = preset("dqn-atari")
    assert (atari.env, atari.segment.frame_stack) == ("ALE/Pong-v5", 4)
    assert preset("tests.support.fakes:ConstantConfig") == RunConfig(agent=ConstantConfig())


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSACConfig(SACConfig):
    """Derives from a config that two presets have."""

    updates: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRainbowConfig(RainbowConfig):
    """Derives from a config that derives from another one with a preset."""

    v_min: float = 0.0
    v_max: float = 9.0


@pytest.mark.parametrize(
    ("made", "base"), [(OwnSACConfig, "sac"), (OwnRainbowConfig, "rainbow"), (DQNConfig, "dqn")]
)
def test_custom_config_starts_from_the_preset_of_its_nearest_base(
    made: type[Any], base: str
) -> None:
    config = preset(f"{made.__module__}:{made.__qualname__}")
    assert config == replace(preset(base), agent=made())


def test_file_may_be_about_a_relative_of_the_preset_named(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"agent: {{type: '{__name__}:OwnSACConfig', updates: 3}}")
    start = preset("sac")
    assert load_over("sac", path) == replace(start, agent=OwnSACConfig(updates=3))
    path.write_text("agent: {type: 'asyncrl.agents.rainbow:RainbowConfig', v_min: 0, v_max: 1}")
    for name in ("c51", "sac"):
        with pytest.raises(ConfigError, match=f"trains RainbowConfig, but {name} is"):
            load_over(name, path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dqn_atari", "unknown agent 'dqn_atari'.*; did you mean dqn-atari"),
        ("../presets/dqn", "unknown agent"),
        ("tests.support.fakes:COUNTING_SPEC", "not a class of agent configs"),
        ("tests.support.fakes:CountingBatch", "build, build_policy and extra_columns"),
        ("tests.support.fakes:Missing", "has no 'Missing'"),
        ("asyncrl.agents.sac:SACAgent", "sac:SACAgent is an agent; name its config"),
    ],
)
def test_what_is_no_agent_config_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        preset(name)


@pytest.mark.parametrize("name", preset_lines())
def test_preset_is_fit_to_train(name: str) -> None:
    config = preset(name)
    replay: Any = config.replay
    small = replace(
        config, mode="async", replay=replace(replay, capacity=min(replay.capacity, 20_000))
    )
    try:
        trainer = build_trainer(small)
    except ConfigError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(f"a package is missing: {error}")
    trainer.close()
    assert 1 <= config.with_usual_ratio().limiter.ratio <= 256
    assert config.limiter.min_size <= config.replay.capacity
    assert config.trainer.batch_size <= config.replay.capacity
    assert config.stop_condition() is None, "how long to train is for the user to say"


def test_replay_of_another_kind_keeps_the_settings_both_have() -> None:
    start = preset("dqn")
    plain = to_plain(start)["replay"]
    chosen = with_replay(plain, "prioritized")
    assert from_plain(PrioritizedReplayConfig, chosen) == PrioritizedReplayConfig(n_step=5)
    assert with_replay(chosen, "prioritized") == chosen
    assert from_plain(type(start.replay), with_replay(chosen, "uniform")) == start.replay


def test_replay_with_a_custom_layout_stays() -> None:
    start = RunConfig(
        replay=TrajectoryQueueConfig(), limiter=RateLimiterConfig(samples_per_insert=1.0)
    )
    with pytest.raises(ConfigError, match="would replace TrajectoryQueueConfig, which the agent"):
        with_replay(to_plain(start)["replay"], "prioritized")


def test_every_preset_is_most_like_itself() -> None:
    for name in preset_lines():
        assert preset(preset_like(preset(name))).agent == preset(name).agent
    changed = RunConfig(agent=PPOConfig(correction="vtrace", epochs=3))
    assert preset_like(changed) == "appo"
    assert preset_like(RunConfig(agent=ConstantConfig())) == "tests.support.fakes:ConstantConfig"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "env_steps", "bar"), [("FrozenLake-v1", 16_000, 0.65), ("CliffWalking-v1", 24_000, -13)]
)
def test_toy_text_is_learned(env: str, env_steps: int, bar: float) -> None:
    config = replace(preset("dqn-toy"), seed=1, env=env)
    config = replace(config, evaluate=replace(config.evaluate, interval_opt_steps=500))
    stop = MaxEnvSteps(env_steps) | ReachesUpperBound("eval_reward", bar)
    result = train(replace(config, mode="sync"), stop=stop)
    assert result.best_score is not None
    assert result.best_score >= bar
