"""Loads the saved model of a run as a policy. Trains and scores nothing.

policy = load_policy("runs/mine")
action = policy.act(obs).action
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Self

from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.core.agent import AgentConfig, Policy, PolicyContext, require_agent_config
from asyncrl.core.env import EnvSpec, MakeBatchEnv, source_of, spec_of
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.replay_buffer import REPLAY
from asyncrl.core.settings import load_as
from asyncrl.learner.best_model import model_in
from asyncrl.learner.run_services import POLICY
from asyncrl.learner.train_result import TrainedPolicy
from asyncrl.run.run_config import RunConfig
from asyncrl.run.trained_policy import PolicyOf
from asyncrl.run.yaml_file import load_yaml

logger = logging.getLogger(__name__)

_BEST, _NEWEST = "best", "newest"

_NAMES = re.compile(r'"([\w.]+:[A-Za-z_][\w.]*)"')
"""Import paths among plain values."""


def load_policy(
    run: str | PathLike[str],
    checkpoint: str | int | None = None,
    *,
    agent: AgentConfig | None = None,
    make_env: MakeBatchEnv | None = None,
    seed: int = 0,
) -> TrainedPolicy:
    """Return a saved model of a run as a policy that does not explore.

    `policy.act(obs).action` holds one action for each row of `obs`, for any number of rows, in the
    format of the training environments. For observations of several fields it also accepts a dict
    or tuple nested as in the environment's space, of one observation or with a row for each.
    `policy.train()` enables exploration. A recurrent policy keeps its state from one `act` to the
    next: call `asyncrl.core.agent.forget` at the start of episodes.

    Args:
        run: Directory of a run, or of checkpoints, or one checkpoint in there.
        checkpoint: `best`, `newest`, or a number of optimisation steps. None takes the best, or,
            with a warning, the newest if the run made no evaluation.
        agent: The trained agent's config. None takes that of `config.yaml`, else of the checkpoint,
            if all classes and functions in it are those of asyncrl.
        make_env: The factory used in training; called once, in this process, for the spaces. None
            takes those in the checkpoint.
        seed: Seed of exploration.

    Raises `CheckpointError` if there is no such valid checkpoint, or if it does not fit agent and
    environment, and `ConfigError` if these are not known.
    """
    model = SavedModel.at(Path(run), None if checkpoint is None else str(checkpoint))
    saved, source = model.load(), "that are given"
    known = saved.meta.get(POLICY, {})
    if agent is None:
        agent, source = model.agent(known), f"of {model.run_dir}"
    require_agent_config(agent)
    if make_env is None and not known:
        raise ConfigError(f"{saved.path} holds no spaces: its trainer knew none; give make_env=")
    spec = spec_of(known["spaces"]) if make_env is None else source_of(make_env).describe().spec
    with _naming(saved, source):
        return PolicyOf(agent, spec)(model_in(saved), seed)


@dataclass(frozen=True, slots=True)
class SavedModel:
    """Names one of the models that a run has saved."""

    checkpoints: Path
    asked: str | None
    """Name of the model. None is the best, or the newest if none was evaluated."""

    @classmethod
    def at(cls, path: Path, name: str | None = None) -> Self:
        """Find it by the directory of the run, of its checkpoints, or of the checkpoint."""
        if (path / "config.yaml").exists() or (path / "checkpoints").is_dir():
            return cls(path / "checkpoints", name)
        if Checkpointer(path).names():
            return cls(path.absolute(), name)
        # The name of the link, even if the path names the data behind it, such as `.` from within,
        # or is another link to that, from elsewhere.
        parent, data = path.absolute().parent, path.resolve()
        if parent.resolve() != data.parent:
            parent = data.parent
        names = Checkpointer(parent).names()
        own = next((one for one in names if (parent / one).resolve() == data), None)
        if own is None:
            return cls(path / "checkpoints", name)
        if name not in {None, _BEST, own}:
            raise ConfigError(f"{path} is one checkpoint and {name} another; give only one")
        return cls(parent, own)

    @property
    def name(self) -> str:
        """Name of the checkpoint: `newest`, or a name in the directory."""
        if self.asked is not None:
            return self.asked
        names = Checkpointer(self.checkpoints).names()
        return _NEWEST if names and _BEST not in names else _BEST

    @property
    def run_dir(self) -> Path:
        """The run's directory; of a run from Python, the one that its checkpoints are in."""
        return (
            self.checkpoints.parent if self.checkpoints.name == "checkpoints" else self.checkpoints
        )

    @property
    def config_path(self) -> Path:
        """Where the command line saves a run's settings."""
        return self.run_dir / "config.yaml"

    def config(self) -> RunConfig:
        """Load the run's settings."""
        return load_yaml(RunConfig, self.config_path)

    def agent(self, known: Mapping[str, Any]) -> AgentConfig:
        """Return the agent of `config.yaml`, or `known`, that of a checkpoint.

        A checkpoint runs no code of others, so it may name objects of asyncrl only.
        """
        if self.config_path.is_file() and self.config_path.stat().st_size:
            return self.config().agent
        plain = known.get("agent")
        own = [name for name in _NAMES.findall(json.dumps(plain)) if name[:8] != "asyncrl."]
        if not plain or own:
            raise ConfigError(
                f"the agent of the models in {self.checkpoints} "
                f"{f'names {own[0]}, which is not of asyncrl' if own else 'is not known'}; give "
                "agent=, the same as in training"
            )
        return load_as(plain, AgentConfig, "agent")  # type: ignore[no-any-return]

    def load(self) -> Checkpoint:
        """Load the checkpoint; raise `CheckpointError` if it is missing or damaged."""
        checkpointer = Checkpointer(self.checkpoints)
        if not (names := checkpointer.names()):
            why = (
                "its run has saved none; the first is saved after a sixth of save.interval_s, or "
                "at the end once it has learned"
                if self.run_dir.is_dir()
                else "the directory does not exist"
            )
            raise CheckpointError(f"{self.run_dir} holds no checkpoint: {why}")
        name = self.name
        if name == _NEWEST and (latest := checkpointer.latest()):
            if self.asked is None:
                logger.warning(
                    "%s has no best model: none was evaluated, or it was removed; using the "
                    "newest, checkpoint %s",
                    self.run_dir,
                    latest,
                )
            return checkpointer.load_latest(mapped=[REPLAY])
        if name not in names:
            raise CheckpointError(
                f"{self.run_dir} has no checkpoint {name}; choose one of {', '.join(names)}"
            )
        return checkpointer.load(name, mapped=[REPLAY])


def policy_of(
    saved: Checkpoint,
    agent: AgentConfig,
    spec: EnvSpec,
    *,
    seed: int,
    source: str,
    n_envs: int = 1,
) -> Policy:
    """Make the policy of a checkpoint.

    If it explores, a ladder of exploration is spread over `n_envs` environments.
    `source` says in errors where agent and environment come from.
    """
    with _naming(saved, source):
        context = PolicyContext(seed=seed, n_envs=n_envs)
        return PolicyOf(agent, spec).acting(model_in(saved), context)


def _naming(saved: Checkpoint, source: str) -> AbstractContextManager[None]:
    advice = (
        f"The agent and the environment {source} must be those of the training, and asyncrl the "
        "version that saved the checkpoint"
    )
    return saved.naming("use", advice)
