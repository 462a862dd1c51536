"""A model that a run has saved acts again, whichever way it was trained."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from asyncrl import load_policy
from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.agents.discrete_sac import DiscreteSACConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.cli.main import main
from asyncrl.core.agent import Policy, PolicyContext
from asyncrl.core.env import PackedSpec, source_of
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.evaluator import Evaluation
from asyncrl.core.messages import ModelInfo
from asyncrl.core.types import Array, ModelVersion
from asyncrl.envs.gym import EnvConfig, make_batch
from asyncrl.export import policy_numpy as exported
from asyncrl.export.export import export_policy
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.run_services import POLICY
from asyncrl.learner.stop_conditions import MaxOptSteps
from asyncrl.learner.train_result import TrainResult
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.saved_model import SavedModel
from asyncrl.run.train import train_sync
from asyncrl.run.trained_policy import PolicyOf
from asyncrl.run.yaml_file import save_yaml
from tests.support.fakes import ConstantConfig, CountingBatch

AGENT = DQNConfig(hidden=(8,), device="cpu")
MAKE_ENV = EnvConfig(id="CartPole-v1", n_envs=2).build
OBS = np.random.default_rng(0).uniform(-1, 1, (40, 4)).astype(np.float32)
FEW = np.zeros((3, 4), np.float32)


POLICY_META = PolicyOf(ConstantConfig(), source_of(MAKE_ENV).describe().spec).description


def save(run_dir: Path, name: str, action: int, **meta: Any) -> None:
    model = {"model": {"action": np.array(action)}}
    meta = {"opt_steps": 20, "env_steps": 0, POLICY: POLICY_META} | meta
    Checkpointer(run_dir / "checkpoints").save(name, model, meta)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return what a run of the command line leaves; its models do 1, 2 and 4."""
    config = RunConfig(agent=ConstantConfig(), env="tests.support.fake_envs:TellingEnv")
    save_yaml(config, tmp_path / "config.yaml")
    for name, action in {"10": 1, "20": 2, "best": 4}.items():
        save(tmp_path, name, action)
    return tmp_path


def done_by(policy: Policy) -> Array:
    return policy.act(FEW).action


def trained(evaluate: EvaluationConfig, **parts: Any) -> TrainResult:
    trainer, limiter = AsyncTrainerConfig(batch_size=8), RateLimiterConfig(min_size=20)
    config = RunConfig(trainer=trainer, limiter=limiter, evaluate=evaluate)
    return train_sync(AGENT, MAKE_ENV, config, stop=MaxOptSteps(20), **parts)


@pytest.mark.parametrize("obs", [FEW[0], FEW[:, :1], FEW[0, 0]])
def test_observation_that_is_no_row_is_refused(run_dir: Path, obs: Array) -> None:
    with pytest.raises(ConfigError, match=rf"\(n, 4\), got {re.escape(str(obs.shape))}"):
        load_policy(run_dir).act(obs)


@pytest.mark.parametrize(
    ("checkpoint", "action"), [("best", 4), ("newest", 2), ("10", 1), (10, 1), (20, 2)]
)
def test_checkpoint_is_chosen(run_dir: Path, checkpoint: str | int, action: int) -> None:
    assert done_by(load_policy(run_dir, checkpoint)).tolist() == [action] * 3


def test_checkpoint_may_be_named_by_a_link_from_elsewhere(
    run_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("deployed")
    link = elsewhere / "production"
    link.symlink_to(run_dir / "checkpoints/10")
    assert done_by(load_policy(link)).tolist() == [1] * 3
    assert SavedModel.at(link).run_dir == run_dir
    (elsewhere / "config.yaml").write_bytes((run_dir / "config.yaml").read_bytes())
    (elsewhere / "checkpoints").symlink_to(run_dir / "checkpoints")
    assert SavedModel.at(elsewhere / "checkpoints/10").run_dir == elsewhere


def test_newest_model_that_is_whole_is_taken(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (run_dir / "checkpoints/20/manifest.json").unlink()
    with caplog.at_level(logging.WARNING):
        assert done_by(load_policy(run_dir, "newest")).tolist() == [1] * 3
    assert "manifest.json is missing" in caplog.text


def test_run_from_python_acts_and_is_saved_and_exported_by_what_it_knows(tmp_path: Path) -> None:
    models = tmp_path / "mine"
    evaluate = EvaluationConfig(play=EpisodeEvaluatorConfig(episodes=1))
    result = trained(evaluate, checkpoint_dir=models)
    policy = load_policy(models)
    same = AGENT.build_policy(source_of(MAKE_ENV).describe().spec, PolicyContext(seed=5))
    params = Checkpointer(models).load("best").group("model")
    same.sync_model(ModelInfo(version=ModelVersion(20), params=params))
    same.train(False)
    expected = same.act(OBS).action.tolist()
    assert result.policy is result.policy
    result.policy.save(tmp_path / "kept")
    result.policy.export(tmp_path / "there" / "policy.npz")
    export_policy(policy, source_of(MAKE_ENV).describe().spec, tmp_path / "again.npz")
    for acting in (
        policy,
        result.policy,
        load_policy(models, 20),
        load_policy(models, agent=AGENT, make_env=MAKE_ENV),
        load_policy(tmp_path / "kept"),
    ):
        assert acting.act(OBS).action.tolist() == expected
        assert not acting.training
    for file in ("there/policy.npz", "again.npz"):
        assert exported.Policy(tmp_path / file).act(OBS).tolist() == expected
    assert (tmp_path / "there/policy_numpy.py").is_file()
    with pytest.raises(ConfigError, match=f"{models} holds the checkpoints of a run"):
        result.policy.save(models)
    with pytest.raises(CheckpointError, match=f"{models} has no checkpoint 7;"):
        load_policy(models, 7)
    assert main(["export", str(models), "--to", str(tmp_path / "by_command.npz")]) == 0
    assert exported.Policy(tmp_path / "by_command.npz").act(OBS).tolist() == expected


def test_result_without_a_directory_has_its_best_model_or_else_its_last_one() -> None:
    class Falls:
        score = 0.0

        def evaluate(self, policy: Policy) -> Evaluation:
            self.score -= 1.0
            return Evaluation(self.score, {})

        def close(self) -> None: ...

    often = EvaluationConfig(where="inline", interval_opt_steps=5)
    best, last = trained(often, make_evaluator=Falls), trained(EvaluationConfig(where="off"))
    assert best.policy.info.version == best.best_opt_steps == 5
    assert last.policy.info.version == 20
    assert "make_policy" not in last.summary()
    json.dumps(last.summary())


@pytest.mark.parametrize(("env_steps", "random"), [(0, False), (10, True), (5000, False)])
def test_model_of_an_offline_run_has_no_phase_of_random_actions(
    tmp_path: Path, env_steps: int, random: bool
) -> None:
    agent = DiscreteSACConfig(hidden=(8,), device="cpu", random_env_steps=1000)
    spec = source_of(MAKE_ENV).describe().spec
    policy = agent.build_policy(spec, PolicyContext(seed=0))
    params = {name: np.zeros_like(x) for name, x in policy.model_info().params.items()}
    last = max(name for name, x in params.items() if x.shape == (2,))
    params[last][:] = [0.0, 50.0]  # the second action is certain
    meta = {"opt_steps": 1, "env_steps": env_steps}
    Checkpointer(tmp_path).save("best", {"model": params}, meta)
    loaded = load_policy(tmp_path, agent=agent, make_env=MAKE_ENV)
    loaded.train()
    assert (not loaded.act(OBS).action.all()) is random


class Robot(gym.Env[Any, Any]):
    """Sees a dict in a dict, a tuple, and a choice."""

    observation_space = Dict(
        arm=Dict(pose=Box(-1, 1, (3,), np.float32), grip=Discrete(2)),
        wheels=Tuple((Box(-1, 1, (2,), np.float32), Box(0, 255, (1, 2), np.uint8))),
    )
    action_space = Discrete(4)


class Camera(gym.Env[Any, Any]):
    """Sees bytes."""

    observation_space = Box(0, 255, (3, 2), np.uint8)
    action_space = Discrete(4)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The policies of a robot and of a camera."""
    policies = {}
    for env in (Robot, Camera):
        directory = tmp_path_factory.mktemp(env.__name__)
        make_env = make_batch(env, n_envs=2)
        model = AGENT.build_policy(
            source_of(make_env).describe().spec, PolicyContext(seed=1)
        ).model_info()
        Checkpointer(directory).save("1", {"model": model.params}, {"opt_steps": 1, "env_steps": 0})
        policies[env.__name__] = load_policy(directory, agent=AGENT, make_env=make_env)
    return policies


def test_observations_of_several_fields_are_taken_as_they_come(policies: Mapping[str, Any]) -> None:
    policy = policies["Robot"]
    spec = source_of(make_batch(Robot, n_envs=2)).describe().spec
    assert isinstance(spec.observation, PackedSpec)
    space = Robot.observation_space
    space.seed(0)
    seen = [space.sample() for _ in range(30)]
    arm = {name: np.stack([s["arm"][name] for s in seen]) for name in ("pose", "grip")}
    wheels = tuple(np.stack([s["wheels"][i] for s in seen]) for i in range(2))
    fields = {f"arm/{name}": rows for name, rows in arm.items()}
    fields |= {f"wheels/{i}": rows for i, rows in enumerate(wheels)}
    actions = policy.act(spec.observation.pack(fields)).action
    assert len(set(actions)) > 1
    assert policy.act({"arm": arm, "wheels": wheels}).action.tolist() == actions.tolist()
    assert [int(policy.act(one).action[0]) for one in seen] == actions.tolist()
    other = {**seen[0], "arm": {**seen[0]["arm"], "pose": np.zeros(2)}}
    for given, words in (
        ({"arm": {"pose": np.zeros(3)}}, r"must have the fields \['arm/.* got \['arm/pose'\]"),
        (seen[:2], r"must have the fields \['arm/.* got a list; use"),
        (other, r"field 'arm/pose' .* shape \(3,\), or rows of it, got"),
    ):
        with pytest.raises(ConfigError, match=words):
            policy.act(given)


def test_observations_may_come_in_another_order_of_memory_or_dtype(
    policies: Mapping[str, Any],
) -> None:
    policy = policies["Camera"]
    seen = np.random.default_rng(0).integers(0, 256, (40, 3, 2), np.uint8)
    mirrored = seen[:, :, ::-1]  # a view with negative strides
    expected = policy.act(np.ascontiguousarray(mirrored)).action.tolist()
    assert len(set(expected)) > 1
    assert policy.act(mirrored).action.tolist() == expected
    assert policy.act(mirrored.astype(">f8")).action.tolist() == expected


@pytest.mark.parametrize("values", [0.5, 300, -1, np.nan, None, "x"])
def test_numbers_that_the_training_had_not_are_refused(
    values: object, policies: Mapping[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="observations must be uint8, as in training"):
        policies["Camera"].act(np.full((2, 3, 2), values))
    one = Robot.observation_space.sample()
    wheels = (one["wheels"][0], np.full((1, 2), values))
    with pytest.raises(ConfigError, match="field 'wheels/1' of an observation must be uint8"):
        policies["Robot"].act({**one, "wheels": wheels})


def test_fields_of_different_numbers_of_rows_are_refused(policies: Mapping[str, Any]) -> None:
    one = Robot.observation_space.sample()
    for shape, words in (
        ((0, 2), "number of rows, .* got .*'wheels/0': 0"),
        ((2, 2), "number of rows, .* got .*'wheels/0': 2"),
        ((1, 1, 2), "or rows of it"),
    ):
        with pytest.raises(ConfigError, match=words):
            policies["Robot"].act({**one, "wheels": (np.zeros(shape), one["wheels"][1])})
    with pytest.raises(ConfigError, match=r"as rows of shape \(n, \d+\), got \(2, 3\)"):
        policies["Robot"].act(np.zeros((2, 3)))


def test_what_is_not_known_is_asked_for(run_dir: Path) -> None:
    (run_dir / "config.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"names tests.support.fakes:ConstantConfig, .* agent="):
        load_policy(run_dir)
    save(run_dir, "best", 4, **{POLICY: {}})
    for parts, asked in (({}, "agent="), ({"agent": ConstantConfig()}, "make_env=")):
        with pytest.raises(ConfigError, match=f"give {asked}"):
            load_policy(run_dir, **parts)
    policy = load_policy(run_dir, agent=ConstantConfig(), make_env=CountingBatch)
    assert policy.act(FEW[:, :2]).action.tolist() == [4] * 3


@pytest.mark.parametrize(
    ("run", "checkpoint", "words"),
    [
        (".", "77", "has no checkpoint 77; choose one of 10, 20, best"),
        ("nowhere", "best", "nowhere holds no checkpoint: the directory does not exist"),
        ("empty", "best", "empty holds no checkpoint: its run has saved none"),
        ("config.yaml", "best", "config.yaml holds no checkpoint: the directory does not exist"),
    ],
)
def test_missing_checkpoint_is_reported(
    run_dir: Path, run: str, checkpoint: str | int, words: str
) -> None:
    (run_dir / "empty").mkdir()
    with pytest.raises(CheckpointError, match=words):
        load_policy(run_dir / run, checkpoint)


def test_model_of_another_agent_is_refused_with_where_its_settings_came_from(run_dir: Path) -> None:
    with pytest.raises(CheckpointError, match=r"does not fit.*environment that are given must be"):
        load_policy(run_dir, agent=AGENT, make_env=MAKE_ENV)
    save_yaml(RunConfig(agent=AGENT), run_dir / "config.yaml")
    with pytest.raises(CheckpointError, match=rf"environment of {run_dir} must be"):
        load_policy(run_dir)
