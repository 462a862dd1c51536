"""What a run has left: its settings, and one of its models, ready to act."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from asyncrl.agent import Policy, PolicyContext
from asyncrl.checkpoint import Checkpoint, Checkpointer
from asyncrl.config import load_yaml
from asyncrl.env import BatchEnv
from asyncrl.errors import CheckpointError, ConfigError
from asyncrl.messages import ModelInfo
from asyncrl.replay_buffer import REPLAY
from asyncrl.run_config import RunConfig
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
    config = run_dir / "config.yaml"
    if config.is_file() and config.stat().st_size:
        return
    if config.is_file():
        found = "its config.yaml is empty"
    elif not run_dir.exists():
        found = "there is no such directory"
    elif not run_dir.is_dir():
        found = "it is a file"
    else:
        found = "it has no config.yaml"
    raise ConfigError(
        f"{run_dir} is not a run directory: {found}; name what asyncrl train has written, "
        "--run-dir or runs/..., in which checkpoints/ is"
    )


@contextmanager
def trained(
    run_dir: Path, checkpoint: str, *, episodes: int = 1, env_kwargs: Mapping[str, Any]
) -> Iterator[Trained]:
    """Load a model, and make the environment for so many episodes, some arguments changed."""
    config = load_yaml(RunConfig, run_dir / "config.yaml")
    config = replace(config, eval_env_kwargs={**config.eval_env_kwargs, **env_kwargs})
    saved = _load(run_dir, checkpoint)
    env = config.eval_env_config().build_for(episodes)
    try:
        with _using(saved, run_dir):
            policy = config.agent.build_policy(env.spec, PolicyContext(seed=config.seed))
            info = ModelInfo(
                version=ModelVersion(saved.count("opt_steps")),
                params=saved.group("model"),
                env_steps=saved.count("env_steps"),
            )
            policy.sync_model(info)
        yield Trained(config, policy, env, info.version)
    finally:
        env.close()


def _load(run_dir: Path, name: str) -> Checkpoint:
    checkpointer = Checkpointer(run_dir / "checkpoints")
    if not (names := checkpointer.names()):
        raise CheckpointError(
            f"{run_dir} holds no checkpoint: its run has saved none, which it does every "
            "trainer.books.save_interval_opt_steps and at its end, once it has learned"
        )
    if name not in names:
        raise CheckpointError(
            f"{run_dir} has no checkpoint {name}; --checkpoint chooses one of {', '.join(names)}"
        )
    return checkpointer.load(name, mapped=[REPLAY])


def _using(saved: Checkpoint, run_dir: Path) -> AbstractContextManager[None]:
    return saved.naming(
        "use",
        f"The agent and the environment in {run_dir}/config.yaml must be those that it was "
        "trained with, and this the version of asyncrl that saved it",
    )
