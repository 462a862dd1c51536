"""A policy with a model that was trained: it acts, is saved and exported. Trains nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.checkpoint.resume import plain_config
from asyncrl.core.agent import Act, AgentConfig, Policy, PolicyContext, PolicyWrapper
from asyncrl.core.env import DiscreteSpec, EnvSpec, PackedSpec, plain_spec
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import ModelInfo
from asyncrl.core.settings import to_parameters
from asyncrl.core.types import Array
from asyncrl.learner.run_services import POLICY
from asyncrl.learner.train_result import TrainedPolicy

Fields = Mapping[str, Any] | tuple[Any, ...]
"""An observation of several fields, as environments return it."""


@dataclass(frozen=True, slots=True)
class PolicyOf:
    """Makes the policies of an agent in these spaces, as a `PolicyMaker`."""

    agent: AgentConfig
    spec: EnvSpec

    @property
    def description(self) -> Mapping[str, Any]:
        """Agent and spaces as plain values."""
        return plain_config({"agent": to_parameters(self.agent), "spaces": plain_spec(self.spec)})

    def __call__(self, model: ModelInfo, seed: int = 0) -> TrainedPolicy:
        """Return a policy with this model."""
        policy = self.acting(model, PolicyContext(seed=seed))
        policy.train(False)
        is_packed = isinstance(self.spec.observation, PackedSpec)
        return (_TakesFields if is_packed else _TakesRows)(policy, self, model)

    def acting(self, model: ModelInfo, context: PolicyContext) -> Policy:
        """Return the agent's own policy with this model."""
        policy = self.agent.build_policy(self.spec, context)
        policy.sync_model(model.explored())
        return policy


class _TakesRows(PolicyWrapper):
    """Acts on one observation per row, and raises for an observation without rows."""

    def __init__(self, policy: Policy, maker: PolicyOf, info: ModelInfo) -> None:
        super().__init__(policy)
        self._maker = maker
        self.info = info
        self._shape = maker.spec.observation.shape
        self._dtype = maker.spec.observation.dtype

    def save(self, directory: str | PathLike[str]) -> None:
        """Save it for `load_policy(directory)`, in place of an earlier one there."""
        models = Checkpointer(Path(directory))
        if models.latest():
            raise ConfigError(
                f"{directory} holds the checkpoints of a run, whose best model a saved policy "
                "would replace; use another directory"
            )
        steps = {"opt_steps": int(self.info.version), "env_steps": self.info.env_steps}
        models.save("best", {"model": self.info.params}, {**steps, POLICY: self._maker.description})

    def export(self, path: str | PathLike[str]) -> None:
        """Write it as a file that acts without asyncrl."""
        from asyncrl.export.export import export_policy  # noqa: PLC0415  # it loads torch

        Path(path).parent.mkdir(parents=True, exist_ok=True)
        export_policy(self._policy, self._maker.spec, Path(path))

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
        act, action = super().act(rows), self._maker.spec.action
        first = action.start if isinstance(action, DiscreteSpec) else 0
        return replace(act, action=act.action + first) if first else act


class _TakesFields(_TakesRows):
    """Acts on observations of several fields in the environment's own format, too."""

    def act(self, obs: Array | Fields) -> Act:
        """Return an action for each row; observations of one environment count as one row."""
        return super().act(obs if isinstance(obs, np.ndarray) else self._packed(obs))

    def _packed(self, obs: Fields) -> Array:
        given, spec = dict(_flat(obs)), self._maker.spec.observation
        assert isinstance(spec, PackedSpec)  # noqa: S101  # else `PolicyOf` takes the other class
        wanted = spec.fields
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
        return spec.pack(columns)


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
