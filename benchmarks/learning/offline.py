"""Which algorithms learn from data alone? Episodes of a trained agent, saved as a Minari data set.

    python -m benchmarks.learning.offline ALGORITHM/TASK --seed 0

The player is trained first, in one process, until it is at the task's bar; then it plays with as
much chance as in training. Who learns from that never steps the environment but to be evaluated.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from asyncrl.agents.awac import AWACConfig
from asyncrl.agents.bc import BCConfig
from asyncrl.agents.iql import IQLConfig
from asyncrl.checkpoint.checkpoint import Checkpoint
from asyncrl.core.agent import AgentConfig, Policy, PolicyContext
from asyncrl.core.messages import ModelInfo
from asyncrl.core.settings import to_plain
from asyncrl.core.types import ModelVersion
from asyncrl.learner.stop_conditions import AnyOf, MaxOptSteps
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import RunConfig, offline_defaults
from asyncrl.run.train import train_from_data
from asyncrl.tools.datasets.minari import find_minari, load_minari, minari_spec
from benchmarks.learning.tasks import TASKS, case_of
from benchmarks.learning.tasks import missing as missing_player
from benchmarks.learning.training import MODES, ConsecutiveEvaluations, best, scored

_DATASET = "pendulum/asyncrl-v0"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineCase:
    """An algorithm on recorded episodes of a task."""

    algorithm: str
    agent: AgentConfig
    player: str = "sac/pendulum"
    """The case whose best model plays."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the player, as in `Case`."""

    episodes: int = 100
    """Number of recorded episodes."""

    max_opt_steps: int = 10_000

    @property
    def task(self) -> str:
        """Return the task that is played."""
        return self.player.partition("/")[2]

    @property
    def name(self) -> str:
        """Return its name on the command line."""
        return f"{self.algorithm}/{self.task}"

    def config(self, seed: int) -> RunConfig:
        """Return the player's settings."""
        case = case_of(self.player)
        return replace(case, settings={**case.settings, **self.settings}).config(seed)

    def plain(self, seed: int) -> dict[str, Any]:
        """Return all settings as plain values that JSON keeps."""
        agent: Any = self.agent
        player = to_plain(self.config(seed))
        plain = {"agent": to_plain(agent), "player": player, "episodes": self.episodes}
        whole: dict[str, Any] = json.loads(
            json.dumps({**plain, "max_opt_steps": self.max_opt_steps})
        )
        return whole


# Advantages in units of returns, and a network as small as the task.
_SMALL: dict[str, Any] = {
    "hidden": (64, 64),
    "learning_rate": 1e-3,
    "tau": 0.02,
    "normalize_reward": True,
}

OFFLINE_CASES: tuple[OfflineCase, ...] = (
    OfflineCase(algorithm="bc", agent=BCConfig()),
    OfflineCase(algorithm="awac", agent=AWACConfig(**_SMALL, temperature=0.1)),
    OfflineCase(algorithm="iql", agent=IQLConfig(**_SMALL, temperature=0.05, expectile=0.9)),
)


def missing(case: OfflineCase) -> str:
    """Return why a case cannot run here; empty if it can."""
    for package in ("minari", "jax"):  # its collector needs both
        if importlib.util.find_spec(package) is None:
            return f"package {package} missing"
    return missing_player(case_of(case.player))


def learn(case: OfflineCase, seed: int) -> dict[str, Any]:
    """Record episodes, learn from them, and return fields of `Run`; steps are the recorded ones."""
    config, task, recorder = case.config(seed), TASKS[case.task], MemoryRecorder()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        MODES["sync"](config, MemoryRecorder(), directory / "player")
        returns = _record(config, best(directory / "player"), case.episodes, directory, seed)
        extras = case.agent.extra_columns(minari_spec(find_minari(_DATASET)))
        replay = UniformReplayConfig(capacity=200_000)
        buffer, _ = load_minari(_DATASET, replay, extras=extras, seed=seed)
        learner = replace(offline_defaults(case.agent), seed=seed)
        result = train_from_data(
            case.agent,
            buffer,
            config.env_config().build_for(task.episodes),
            replace(learner, evaluate=replace(learner.evaluate, play=config.evaluate.play)),
            stop=AnyOf(ConsecutiveEvaluations(task.bar), MaxOptSteps(case.max_opt_steps)),
            recorder=recorder,
            checkpoint_dir=directory / "learner",
        )
        played = replace(config, agent=case.agent)
        scores = scored(played, result, directory / "learner", task.episodes)
    details = {"recorded_score": float(np.mean(returns))}
    return {**scores, "env_steps": len(buffer), "details": details}


def _record(
    config: RunConfig, model: Checkpoint, episodes: int, directory: Path, seed: int
) -> list[float]:
    """Play, save the episodes as a data set under `directory`, and return their returns."""
    os.environ["MINARI_DATASETS_PATH"] = str(directory / "data")
    import minari  # noqa: PLC0415  # reads that variable, and nothing else needs the package

    env = minari.DataCollector(gym.make(config.env))
    policy = _player(config, model, seed)
    returns = [_play(env, policy, seed * episodes + i) for i in range(episodes)]
    env.create_dataset(_DATASET, algorithm_name=type(config.agent).__name__)
    env.close()
    return returns


def _player(config: RunConfig, model: Checkpoint, seed: int) -> Policy:
    batch = replace(config.env_config(), n_envs=1).build()
    policy = config.agent.build_policy(batch.spec, PolicyContext(seed=seed))
    batch.close()
    version = ModelVersion(int(model.meta["opt_steps"]))
    policy.sync_model(ModelInfo(version=version, params=model.groups["model"]))
    policy.train(True)
    return policy


def _play(env: gym.Env[Any, Any], policy: Policy, seed: int) -> float:
    """Play an episode, and return the sum of its rewards."""
    obs, _ = env.reset(seed=seed)
    played, over = 0.0, False
    while not over:
        action = policy.act(np.asarray(obs)[None]).action[0]
        obs, reward, terminated, truncated, _ = env.step(action)
        played += float(reward)
        over = terminated or truncated
    return played


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("case", choices=[case.name for case in OFFLINE_CASES])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    (case,) = (case for case in OFFLINE_CASES if case.name == args.case)
    print(json.dumps(learn(case, args.seed), allow_nan=False), flush=True)


if __name__ == "__main__":
    main()
