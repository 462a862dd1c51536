"""The contract of acting's first half: a network's forward pass. Does not know networks.

Acting has two halves. An inference computes a network's outputs for rows of observations, in this
process or in another one. The policy then chooses actions from the outputs: exploration, random
numbers and bounds never leave the process that acts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from asyncrl.core.declared import Count, Natural, PositiveOrOff, check_declared
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import Peer
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.types import Columns, ModelVersion

OBS, OUTPUTS, MEMORY, NOISE = "obs", "outputs", "memory", "noise"
"""Names of a network's inputs and outputs; `memory` is both."""


class Inference(Protocol):
    """Computes a network's outputs, one row for each row of its inputs."""

    def __call__(self, inputs: Columns) -> Columns:
        """Return `outputs`, and the `memory` after these rows if there is one before them."""
        ...


@runtime_checkable
class HasInference(Protocol):
    """A policy whose `act` computes with nothing of its model but this inference.

    It may also have a `chooser_spec`, which builds a policy that acts like this one if its
    `inference` is set, without parameters: the model is elsewhere. Its inference may have

        fast(one_thread=...)    returns what computes the same faster, or None; it follows
                                `sync_model`, but no other changes of the model
        compute_on(device)      moves the model there, or raises `ConfigError`
    """

    inference: Inference
    inference_inputs: tuple[ColumnSpec, ...]
    """What its inference takes. Noise may be left out."""


def fastest_inference(policy: HasInference, *, one_thread: bool) -> Inference:
    """Return what computes a policy's network in an actor, or in a server for actors.

    `one_thread` says whether its process lets libraries compute with one thread only.
    """
    fast: Callable[..., Inference | None] | None = getattr(policy.inference, "fast", None)
    return (fast and fast(one_thread=one_thread)) or policy.inference


def compute_fast(policy: object, *, one_thread: bool) -> None:
    """Let a policy compute its network in the fastest way, if it leaves a choice."""
    if isinstance(policy, HasInference):
        policy.inference = fastest_inference(policy, one_thread=one_thread)


def observation_input(spec: EnvSpec) -> tuple[ColumnSpec, ...]:
    """Return the input that every network has."""
    return (ColumnSpec(OBS, spec.observation.dtype, spec.observation.shape),)


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """Actor to server: compute the outputs of these rows."""

    peer: Peer
    number: int
    """1 for the first request of an incarnation, one more for each other one. A request that is
    sent again, because there was no answer, keeps its number."""

    inputs: Columns
    """The inputs of the network. None at all asks only for the version of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceAnswer:
    """Server to actor: the outputs of one request."""

    number: int
    version: ModelVersion
    """The model that computed all rows."""

    env_steps: int
    """As in `ModelInfo`; schedules of the choice depend on it."""

    n_actors: int = 0
    """As in `ModelInfo`."""

    outputs: Columns
    error: str = ""
    """Why the request cannot be answered."""


class InferenceClient(Protocol):
    """An actor's end of the connection to a server."""

    def send(self, request: InferenceRequest) -> None:
        """Send a request, or lose it if there is no connection; never waits."""
        ...

    def receive(self, timeout_s: float) -> InferenceAnswer | None:
        """Return the next answer, or None if there was none within `timeout_s`."""
        ...

    def close(self) -> None:
        """Close the connection; may be called again."""
        ...


class InferenceListener(Protocol):
    """A server's end of the connections from all actors."""

    def receive(self, timeout_s: float) -> list[InferenceRequest]:
        """Return the requests that have arrived; wait for one at most `timeout_s`."""
        ...

    def answer(self, peer: Peer, answer: InferenceAnswer) -> None:
        """Send an answer, or drop it if the actor is gone; never waits."""
        ...

    def close(self) -> None:
        """Close all connections; may be called again."""
        ...


class InferenceAddress(Protocol):
    """Where a server of inference listens; can be sent to other processes."""

    def listen(self) -> InferenceListener:
        """Open the server's end; it may be opened again after the process that had it has died."""
        ...

    def connect(self) -> InferenceClient:
        """Open an actor's end; the server need not listen yet."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig:
    """When a server of inference computes a batch. No effect if `inference` is `actor`."""

    min_batch: Natural = 0
    """Rows, that is, observations, to wait for before a batch is computed. 0 takes half of the rows
    of all actors alive, or three quarters if the last batch took longer than `max_wait_s`."""

    max_batch: Count = 4096
    """Maximum number of rows of a batch. One actor's rows are never split: more environments per
    actor make a larger batch."""

    max_wait_s: PositiveOrOff = 0.002
    """Seconds after which a request is computed even if fewer rows wait. If `min_batch` is 0, and
    the last batch took longer, its duration counts instead, up to 0.05 s. 0 computes at once
    whatever there is."""

    device: str = "cpu"
    """Where batches are computed: `cpu`, `cuda`, `cuda:N`, or `auto`, a GPU if there is one. The
    learner may use the same GPU."""

    def __post_init__(self) -> None:
        check_declared(self, "serving")
        if self.min_batch > self.max_batch:
            raise ConfigError(
                f"serving.min_batch is {self.min_batch}, more than serving.max_batch, which is "
                f"{self.max_batch}; lower it, or raise serving.max_batch"
            )
