"""What a run has left: its settings, and one of its models, ready to act."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from asyncrl.agent import Policy, PolicyContext
from asyncrl.checkpoint import Checkpointer
from asyncrl.cli.run_config import RunConfig
from asyncrl.config import load_yaml
from asyncrl.env import BatchEnv
from asyncrl.errors import ConfigError
from asyncrl.messages import ModelInfo
from asyncrl.replay_buffer import REPLAY
from asyncrl.types import ModelVersion


class Trained(NamedTuple):
    """A model, where it was trained and how."""

    config: RunConfig
    policy: Policy
    env: BatchEnv
    """What it is evaluated on."""

    opt_steps: int


def check_run_dir(run_dir: Path) -> None:
    """Refuse what is not the directory of a run."""
    if not (run_dir / "config.yaml").is_file():
        raise ConfigError(f"{run_dir} is not a run directory: it has no config.yaml")


@contextmanager
def trained(
    run_dir: Path, checkpoint: str, *, episodes: int = 1, env_kwargs: Mapping[str, Any]
) -> Iterator[Trained]:
    """Load a model, and make the environment for so many episodes, some arguments changed."""
    config = load_yaml(RunConfig, run_dir / "config.yaml")
    config = replace(config, eval_env_kwargs={**config.eval_env_kwargs, **env_kwargs})
    saved = Checkpointer(run_dir / "checkpoints").load(checkpoint, mapped=[REPLAY])
    opt_steps, env_steps = (int(saved.meta[name]) for name in ("opt_steps", "env_steps"))
    env = config.eval_env_config().build_for(episodes)
    try:
        policy = config.agent.build_policy(env.spec, PolicyContext(seed=config.seed))
        version = ModelVersion(opt_steps)
        info = ModelInfo(version=version, params=saved.groups["model"], env_steps=env_steps)
        policy.sync_model(info)
        yield Trained(config, policy, env, opt_steps)
    finally:
        env.close()
