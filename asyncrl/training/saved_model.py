"""Loads the saved model of a run as a policy. Trains and scores nothing.

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
from asyncrl.core.env import BoxSpec, EnvSpec, MakeBatchEnv, PackedSpec, describe_env
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.messages import ModelInfo
from asyncrl.core.replay_buffer import REPLAY
from asyncrl.core.types import Array, ModelVersion
from asyncrl.training.run_config import RunConfig, load_yaml

logger = logging.getLogger(__name__)

_BEST, _NEWEST = "best", "newest"

Fields = Mapping[str, Any] | tuple[Any, ...]
"""An observation of several fields, as environments return it."""


def load_policy(
    run: str | PathLike[str],
    checkpoint: str | int | None = None,
    *,
    agent: AgentConfig | None = None,
    make_env: MakeBatchEnv | None = None,
    seed: int = 0,
) -> Policy:
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
        agent: The trained agent's config; not needed if `asyncrl train` wrote `config.yaml`.
        make_env: The factory used in training; called once, in this process, for the spaces.
        seed: Seed of exploration.

    Raises `CheckpointError` if there is no such valid checkpoint, or if it does not fit agent and
    environment, and `ConfigError` if these are not known.
    """
    model = SavedModel.at(Path(run), None if checkpoint is None else str(checkpoint))
    saved, source = model.load(), "that are given"
    if agent is None or make_env is None:
        config, source = model.config(), f"in {model.config_path}"
        agent = config.agent if agent is None else agent
        make_env = make_env or partial(config.eval_env_config().build_for, 1)
    require_agent_config(agent)
    spec = describe_env(make_env).spec
    policy = policy_of(saved, agent, spec, seed=seed, source=source)
    policy.train(False)
    observation = spec.observation
    if isinstance(observation, PackedSpec):
        return _TakesFields(policy, observation)
    return _TakesRows(policy, observation)


class _TakesRows(PolicyWrapper):
    """Acts on one observation per row, and raises for an observation without rows."""

    def __init__(self, policy: Policy, observation: BoxSpec | PackedSpec) -> None:
        super().__init__(policy)
        self._shape = observation.shape
        self._dtype = observation.dtype

    def act(self, obs: Array) -> Act:
        """Return an action for each row."""
        rows = _numbers(obs, self._dtype, "observations")
        if rows.shape[1:] != self._shape or not rows.ndim:
            sizes = ", ".join(["n", *map(str, self._shape)])
            hint = "; give obs[None] for one row" if rows.shape == self._shape else ""
            raise ConfigError(
                f"expected observations as rows of shape ({sizes}{'' if self._shape else ','}), "
                f"got {rows.shape}{hint}"
            )
        return super().act(rows)


class _TakesFields(_TakesRows):
    """Acts on observations of several fields in the environment's own format, too."""

    def __init__(self, policy: Policy, observation: PackedSpec) -> None:
        super().__init__(policy, observation)
        self._observation = observation

    def act(self, obs: Array | Fields) -> Act:
        """Return an action for each row; observations of one environment count as one row."""
        return super().act(obs if isinstance(obs, np.ndarray) else self._packed(obs))

    def _packed(self, obs: Fields) -> Array:
        given, wanted = dict(_flat(obs)), self._observation.fields
        if set(given) != {name for name, _ in wanted}:
            found = f"a {type(obs).__name__}" if "" in given else [*given]
            raise ConfigError(
                f"an observation must have the fields {[name for name, _ in wanted]}, got "
                f"{found}; use the format of the training environment"
            )
        columns = {}
        for name, box in wanted:
            field = _numbers(given[name], box.dtype, f"field {name!r} of an observation")
            if box.shape not in {field.shape, field.shape[1:]}:
                raise ConfigError(
                    f"field {name!r} of an observation must have shape {box.shape}, or rows of "
                    f"it, got {field.shape}"
                )
            columns[name] = field if field.ndim > len(box.shape) else field[None]
        rows = {name: len(column) for name, column in columns.items()}
        if len({*rows.values()}) > 1 or 0 in rows.values():
            raise ConfigError(
                f"all fields must have the same number of rows, at least 1, got {rows}"
            )
        return self._observation.pack(columns)


def _numbers(given: Any, dtype: str, what: str) -> Array:  # noqa: ANN401  # whatever users pass
    """Return an array of this dtype, in order; raise if its integers cannot hold what is given."""
    try:
        found = np.asarray(given)
        with np.errstate(invalid="ignore"):  # NaN as an integer
            array = found.astype(dtype, order="C", copy=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what} must be {dtype}, as in training: {error}") from error
    if array.dtype.kind != "f" and found.dtype != array.dtype and not np.array_equal(array, found):
        raise ConfigError(
            f"{what} must be {dtype}, as in training, got {found.dtype} of values that this cannot "
            "hold; give images unscaled"
        )
    return array


def _flat(obs: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield the arrays of an observation, under the names of its spec."""
    if not isinstance(obs, Mapping | tuple):
        yield name, obs
        return
    for key, part in obs.items() if isinstance(obs, Mapping) else enumerate(obs):
        yield from _flat(part, f"{name}/{key}" if name else str(key))


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
        """The run's directory."""
        return self.checkpoints.parent

    @property
    def config_path(self) -> Path:
        """Where the command line saves a run's settings."""
        return self.run_dir / "config.yaml"

    def config(self) -> RunConfig:
        """Load the run's settings; raise `ConfigError` if there are none."""
        if not (self.config_path.is_file() and self.config_path.stat().st_size):
            raise ConfigError(
                f"the training settings of the models in {self.checkpoints} are not known: "
                f"{self.config_path}, which asyncrl train writes, is missing; give agent= and "
                "make_env=, the same as to train_async or train_sync"
            )
        return load_yaml(RunConfig, self.config_path)

    def load(self) -> Checkpoint:
        """Load the checkpoint; raise `CheckpointError` if it is missing or damaged."""
        checkpointer = Checkpointer(self.checkpoints)
        if not (names := checkpointer.names()):
            why = (
                "its run has saved none; the first is saved after save.interval_opt_steps, or at "
                "the end once it has learned"
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
    advice = (
        f"The agent and the environment {source} must be those of the training, and asyncrl the "
        "version that saved the checkpoint"
    )
    with saved.naming("use", advice):
        policy = agent.build_policy(spec, PolicyContext(seed=seed, n_envs=n_envs))
        info = ModelInfo(
            version=ModelVersion(saved.count("opt_steps")),
            params=saved.group("model"),
            env_steps=saved.count("env_steps"),
        )
        policy.sync_model(info.explored())
    return policy
