"""Acts and explores as a policy does, without torch: its network as operations of numpy.

The other half of a policy, its chooser, needs no torch anyway, see `agents/parts/choosing.py`. The
plan is made where torch is, by `plan_acting`, and is plain data. Needs the parameters of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncrl.agents.parts.choosing import Chooser
from asyncrl.agents.parts.exploration import Exploration
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import ModelInfo
from asyncrl.core.types import Array, Columns, Params
from asyncrl.export.policy_numpy import compute

if TYPE_CHECKING:
    from asyncrl.core.agent import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
    """How to act for one environment, given the parameters of a model."""

    chooser: type
    """Class of what chooses from the network's outputs."""

    settings: Mapping[str, bool | int | float | str | Exploration | None]
    """What the chooser is set up with."""

    inputs: tuple[str, ...]
    """Names of the network's inputs, in the order in which operations number them."""

    outputs: Mapping[str, str]
    """Name of each output -> name of the result of an operation."""

    operations: tuple[Any, ...]
    """As in an exported policy."""

    params: Mapping[str, str]
    """Name in operations -> name in a model."""

    constants: Mapping[str, Any]
    """Name in operations -> other arrays of the network, as nested lists with a dtype."""

    def __post_init__(self) -> None:
        if not issubclass(self.chooser, Chooser):
            raise ConfigError(f"{self.chooser.__name__} does not choose actions, as a Chooser does")

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> Policy:
        """Return a policy that acts as the one that was traced."""
        network = Network(self)
        policy: Any = self.chooser(spec, context, **self.settings)
        policy.inference = network

        def sync_model(info: ModelInfo) -> None:
            network.load(info.params)
            policy.env_steps = max(policy.env_steps, info.env_steps)

        policy.sync_model = sync_model
        return policy  # type: ignore[no-any-return]  # of a class that is known by name


class Network:
    """Computes a network's outputs by numpy: an `Inference`."""

    def __init__(self, acting: Acting) -> None:
        self._acting = acting
        self._constants = {name: as_array(plain) for name, plain in acting.constants.items()}
        self._params: dict[str, Array] = {}

    def load(self, params: Params) -> None:
        """Use these parameters; raise `ConfigError` if some are missing."""
        wanted = self._acting.params
        if missing := sorted({*wanted.values()} - {*params}):
            raise ConfigError(
                f"the learner's model lacks {missing[0]}, which this actor's network has; join "
                "with the newest key of the run"
            )
        loaded = {name: np.array(params[of]) for name, of in wanted.items()}
        for name, before in self._params.items():
            if loaded[name].shape != before.shape:
                raise ConfigError(
                    f"the learner's model has {wanted[name]} of shape {loaded[name].shape}, "
                    f"expected {before.shape}; join with the newest key of the run"
                )
        self._params = loaded

    def __call__(self, inputs: Columns) -> Columns:
        """Return the outputs for one row of each input."""
        values: dict[str, Any] = {**self._constants, **self._params}
        values |= {f"input {i}": inputs[name] for i, name in enumerate(self._acting.inputs)}
        compute(self._acting.operations, values)
        return {name: values[of] for name, of in self._acting.outputs.items()}


def plain_array(array: Array) -> dict[str, Any]:
    """Return an array as plain values, which JSON can represent."""
    return {"dtype": str(array.dtype), "values": array.tolist()}


def as_array(plain: Mapping[str, Any]) -> Array:
    """Return what `plain_array` was made of."""
    return np.array(plain["values"], plain["dtype"])
