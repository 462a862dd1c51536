"""The contract of acting's first half: a network's forward pass. Does not know networks.

Acting has two halves. An inference computes a network's outputs for rows of observations, in this
process or in another one. The policy then chooses actions from the outputs: exploration, random
numbers and bounds never leave the process that acts.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from asyncrl.core.env import EnvSpec
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.types import Columns

OBS, OUTPUTS, MEMORY, NOISE = "obs", "outputs", "memory", "noise"
"""Names of a network's inputs and outputs; `memory` is both."""


class Inference(Protocol):
    """Computes a network's outputs, one row for each row of its inputs."""

    def __call__(self, inputs: Columns) -> Columns:
        """Return `outputs`, and the `memory` after these rows if there is one before them."""
        ...


@runtime_checkable
class HasInference(Protocol):
    """A policy whose `act` computes with nothing of its model but this inference."""

    inference: Inference
    inference_inputs: tuple[ColumnSpec, ...]
    """What its inference takes. Noise may be left out."""


def observation_input(spec: EnvSpec) -> tuple[ColumnSpec, ...]:
    """Return the input that every network has."""
    return (ColumnSpec(OBS, spec.observation.dtype, spec.observation.shape),)
