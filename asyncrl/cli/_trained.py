"""A model that a run from the command line has left, with the environment it is scored on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from asyncrl.core.agent import Policy
from asyncrl.core.env import BatchEnv
from asyncrl.core.errors import ConfigError
from asyncrl.training.run_config import RunConfig
from asyncrl.training.saved_model import SavedModel, policy_of


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


def find_model(run: Path, checkpoint: str) -> SavedModel:
    """Find what is named by a run, or by one of its checkpoints."""
    model = SavedModel.at(run, checkpoint)
    check_run_dir(model.run_dir)
    return model


@contextmanager
def trained(
    model: SavedModel, *, episodes: int = 1, env_kwargs: Mapping[str, Any]
) -> Iterator[Trained]:
    """Load a model, and make the environment for so many episodes, some arguments changed."""
    config = model.config()
    config = replace(config, eval_env_kwargs={**config.eval_env_kwargs, **env_kwargs})
    saved = model.load()
    env = config.eval_env_config().build_for(episodes)
    try:
        source = f"in {model.config_path}"
        policy = policy_of(saved, config.agent, env.spec, seed=config.seed, source=source)
        yield Trained(config, policy, env, saved.count("opt_steps"))
    finally:
        env.close()
