"""What crosses a process border: frozen classes, and nothing about bytes (`wire.py`) or sockets.

An actor says `Hello`, then `Experience` and `ActorReport`; an evaluating process says `Hello`,
then `EvaluationReport`. The learner answers with `ModelInfo`, and with acknowledgements and the
request to finish, which the transport keeps to itself.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from asyncrl.core.types import ActorId, Array, Columns, IntArray, ModelVersion, Params


def _version(package: str) -> str:
    """Return the version that is installed, without loading it; not for which device."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return "of no known version"


SOFTWARE = (
    f"asyncrl {_version('asyncrl')} on Python {sys.version_info.major}.{sys.version_info.minor} "
    f"with torch {_version('torch')}"
)
"""What this process runs, as far as it matters to those it speaks with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who speaks: a slot, and which of its lives."""

    actor_id: ActorId
    incarnation: int
    """0 for the first process in this slot, one more with each restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of every actor: what it will send, checked before it may send any."""

    peer: Peer
    schema_hash: str
    """Of the segments this actor sends; empty for an evaluator, which sends none."""

    software: str = SOFTWARE
    """What it runs; only peers that run the same understand each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """Whole segments, as columns of shape (segments, rows, ...)."""

    peer: Peer
    seq: int
    """1 for the first message of an incarnation; no gaps."""

    columns: Columns
    rows: IntArray
    """(segments,) how many rows of each are filled."""

    transitions: int
    """Transitions that enter the ledger with this message."""

    produced: int
    """Transitions this incarnation has produced so far, these included."""

    env_steps: int
    """Environment steps behind them."""

    model_version: ModelVersion
    """The newest model that acted in this message."""


ACTOR_PHASES = ("env", "policy", "wait", "send")
"""What actors spend their time in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorReport:
    """An actor's own numbers, from time to time and once more, `final`, when it ends."""

    peer: Peer
    produced: int
    """Transitions of this incarnation so far, sent or not."""

    env_steps: int
    episodes: int
    shares: Mapping[str, float]
    """Seconds spent since the last report, by phase."""

    episode_returns: Array = field(default_factory=lambda: np.empty(0, np.float64))
    """(episodes,) float64, of those that ended since the last report; if they are more than fit
    into a message, of the newest. Arrays, since a batch of small environments ends a hundred
    thousand in a second."""

    episode_lengths: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    info_sums: Mapping[str, float] = field(default_factory=dict)
    info_counts: Mapping[str, float] = field(default_factory=dict)
    """Of the numbers that infos had of these episodes, see `EnvStep.info`: their sums, and of how
    many episodes, by name."""

    policy: Mapping[str, float] = field(default_factory=dict)
    """What the policy says of itself, for instance its exploration rate, and what the step
    processor does."""

    final: bool = False
    seq: int = 0
    """1 for the first report of an incarnation; no gaps. The link counts, nobody else need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """The score of one published model."""

    peer: Peer
    model_version: ModelVersion
    score: float
    record: Mapping[str, float]
    seq: int = 0
    """As in `ActorReport`."""


_UNNUMBERED = ModelVersion(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """An immutable snapshot of a model's parameters."""

    params: Params
    version: ModelVersion = _UNNUMBERED
    """Optimisation steps of the run when it was taken. The trainer sets it."""

    env_steps: int = 0
    """Environment steps of the whole run when it was taken; schedules count in these."""


Report = ActorReport | EvaluationReport
"""What costs no credit, and yet arrives."""

Message = Hello | Experience | ActorReport | EvaluationReport
"""What a learner's link delivers."""
