"""What runs have left behind, ready to act: a saved model as a policy. Trains and scores nothing.

policy = load_policy("runs/mine")
action = policy.act(obs).action
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.core.agent import (
    Act,
    AgentConfig,
    Policy,
    PolicyContext,
    PolicyWrapper,
    require_agent_config,
)
from asyncrl.core.env import EnvSpec, MakeBatchEnv, PackedSpec, look_at
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.messages import ModelInfo
from asyncrl.core.replay_buffer import REPLAY
from asyncrl.core.types import Array, ModelVersion
from asyncrl.training.run_config import RunConfig, load_yaml

logger = logging.getLogger(__name__)

_BEST, _NEWEST = "best", "newest"

Fields = Mapping[str, Any] | tuple[Any, ...]
"""An observation of several fields, as environments give it."""


def load_policy(
    run: str | PathLike[str],
    checkpoint: str | int | None = None,
    *,
    agent: AgentConfig | None = None,
    make_env: MakeBatchEnv | None = None,
    seed: int = 0,
) -> Policy:
    """Return a model that a run has saved, as a policy that does not explore.

    `policy.act(obs).action` holds an action for each row of `obs`, any number of them, as the
    environments of training gave them. Of several fields it takes their dict or tuple as well,
    nested as in the environment's own space, of one observation or of a row for each.
    `policy.train()` has it explore. One with a memory keeps it
    from one `act` to the next: tell it by `asyncrl.core.agent.forget` where an episode begins.

    Args:
        run: Directory of a run, or of checkpoints, or one checkpoint in there.
        checkpoint: `best`, `newest`, or a number of optimisation steps. By default the best, or,
            with a warning, the newest of a run that has evaluated none.
        agent: What was trained; not needed where `asyncrl train` has written it to `config.yaml`.
        make_env: What it was trained on, the same; called once, in this process, for the spaces.
        seed: Of its exploration.

    Raises `CheckpointError` if there is no such checkpoint, or none that is whole and of that agent
    and environment, and `ConfigError` if these are not known.
    """
    model = SavedModel.at(Path(run), None if checkpoint is None else str(checkpoint))
    saved, source = model.load(), "that are given"
    if agent is None or make_env is None:
        config, source = model.config(), f"in {model.config_path}"
        agent = config.agent if agent is None else agent
        make_env = make_env or partial(config.eval_env_config().build_for, 1)
    require_agent_config(agent)
    spec = look_at(make_env).spec
    policy = policy_of(saved, agent, spec, seed=seed, source=source)
    policy.train(False)
    observation = spec.observation
    if isinstance(observation, PackedSpec):
        return _TakesFields(policy, observation)
    return _TakesRows(policy, observation.shape)


class _TakesRows(PolicyWrapper):
    """Acts on a row for each observation, and says so where one comes without."""

    def __init__(self, policy: Policy, shape: tuple[int, ...]) -> None:
        super().__init__(policy)
        self._shape = shape

    def act(self, obs: Array) -> Act:
        """Choose an action for each row."""
        rows = np.asarray(obs)
        if rows.shape[1:] != self._shape or not rows.ndim:
            sizes = ", ".join(["n", *map(str, self._shape)])
            hint = "; give obs[None] for one row" if rows.shape == self._shape else ""
            raise ConfigError(
                f"expected observations as rows of shape ({sizes}{'' if self._shape else ','}), "
                f"got {rows.shape}{hint}"
            )
        return super().act(rows)


class _TakesFields(PolicyWrapper):
    """Acts on observations as an environment with several fields gives them, too."""

    def __init__(self, policy: Policy, observation: PackedSpec) -> None:
        super().__init__(policy)
        self._observation = observation

    def act(self, obs: Array | Fields) -> Act:
        """Choose an action for each row; observations of one environment are one row."""
        return super().act(obs if isinstance(obs, np.ndarray) else self._packed(obs))

    def _packed(self, obs: Fields) -> Array:
        given, wanted = dict(_flat(obs)), self._observation.fields
        if set(given) != {name for name, _ in wanted}:
            raise ConfigError(
                f"an observation must have the fields {[name for name, _ in wanted]}, got "
                f"{[*given]}; give it as the environment of training did"
            )
        columns = {}
        for name, box in wanted:
            field = np.asarray(given[name], box.dtype)
            if field.shape[max(0, field.ndim - len(box.shape)) :] != box.shape:
                raise ConfigError(
                    f"field {name!r} of an observation must have shape {box.shape}, or rows of "
                    f"it, got {field.shape}"
                )
            columns[name] = field if field.ndim > len(box.shape) else field[None]
        return self._observation.pack(columns)


def _flat(obs: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield the arrays of an observation, under the names that its spec gives them."""
    if not isinstance(obs, Mapping | tuple):
        yield name, obs
        return
    for key, part in obs.items() if isinstance(obs, Mapping) else enumerate(obs):
        yield from _flat(part, f"{name}/{key}" if name else str(key))


@dataclass(frozen=True, slots=True)
class SavedModel:
    """Which of the models that a run has saved."""

    checkpoints: Path
    asked: str | None
    """Name of the model. None is the best, or the newest if none was evaluated."""

    @classmethod
    def at(cls, path: Path, name: str | None = None) -> Self:
        """Find it by the directory of its run, of its checkpoints, or by its own."""
        if (path / "config.yaml").exists() or (path / "checkpoints").is_dir():
            return cls(path / "checkpoints", name)
        if Checkpointer(path).names():
            return cls(path.absolute(), name)
        # What it is called, also if its data is named, as by `.` from within.
        parent, data = path.absolute().parent, path.resolve()
        names = Checkpointer(parent).names()
        own = next((one for one in names if (parent / one).resolve() == data), None)
        if own is None:
            return cls(path / "checkpoints", name)
        if name not in {None, _BEST, own}:
            raise ConfigError(f"{path} is one checkpoint and {name} another; leave one of them out")
        return cls(parent, own)

    @property
    def name(self) -> str:
        """What its checkpoint is called: `newest`, or a name in the directory."""
        if self.asked is not None:
            return self.asked
        names = Checkpointer(self.checkpoints).names()
        return _NEWEST if names and _BEST not in names else _BEST

    @property
    def run_dir(self) -> Path:
        """The directory that holds everything else of the run."""
        return self.checkpoints.parent

    @property
    def config_path(self) -> Path:
        """Where the command line has written how it was trained."""
        return self.run_dir / "config.yaml"

    def config(self) -> RunConfig:
        """Read how it was trained; raise `ConfigError` if nothing says so."""
        if not (self.config_path.is_file() and self.config_path.stat().st_size):
            raise ConfigError(
                f"nothing says how the models in {self.checkpoints} were trained, as asyncrl train "
                f"would in {self.config_path}; give agent= and make_env=, the same as to "
                "train_async or train_sync"
            )
        return load_yaml(RunConfig, self.config_path)

    def load(self) -> Checkpoint:
        """Load its checkpoint; raise `CheckpointError` if it is not there, or not whole."""
        checkpointer = Checkpointer(self.checkpoints)
        if not (names := checkpointer.names()):
            why = (
                "its run has saved none, which it does every save.interval_opt_steps "
                "and at its end, once it has learned"
                if self.run_dir.is_dir()
                else "there is no such directory"
            )
            raise CheckpointError(f"{self.run_dir} holds no checkpoint: {why}")
        name = self.name
        if name == _NEWEST and (latest := checkpointer.latest()):
            if self.asked is None:
                logger.warning(
                    "%s has no best model, since none was evaluated; took the newest, of checkpoint"
                    " %s",
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
    saved: Checkpoint, agent: AgentConfig, spec: EnvSpec, *, seed: int, source: str
) -> Policy:
    """Make the policy that a checkpoint holds the model of.

    `source` tells, in errors, where agent and environment have come from.
    """
    advice = (
        f"The agent and the environment {source} must be those that it was trained with, and this "
        "the version of asyncrl that saved it"
    )
    with saved.naming("use", advice):
        policy = agent.build_policy(spec, PolicyContext(seed=seed))
        info = ModelInfo(
            version=ModelVersion(saved.count("opt_steps")),
            params=saved.group("model"),
            env_steps=saved.count("env_steps"),
        )
        policy.sync_model(info)
    return policy
