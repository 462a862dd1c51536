"""The messages between processes: frozen classes, independent of bytes (`wire.py`) and sockets.

An actor sends `Hello`, then `Experience` and `ActorReport`. An evaluating process sends `Hello`,
then `EvaluationReport`. The learner answers with `ModelInfo` and `EnvChange`, and with
acknowledgements and the request to finish, which are internal to the transport.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from asyncrl.core.types import ActorId, Array, Columns, IntArray, ModelVersion, Params


def _version(package: str, otherwise: str) -> str:
    """Return the installed version without importing the package; without its device suffix."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return otherwise


_PYTHON = f"Python {sys.version_info.major}.{sys.version_info.minor}"
_BARE = f"asyncrl {_version('asyncrl', 'of unknown version')} on {_PYTHON} with torch "
_NO_TORCH = "not installed"

SOFTWARE = _BARE + _version("torch", _NO_TORCH)
"""The versions of this process, as far as they matter to its peers."""


def fits(software: object) -> bool:
    """Whether a peer's versions fit those of this process.

    One without torch acts by a plan in numpy, to which the version of torch does not matter.
    """
    return software in (SOFTWARE, _BARE + _NO_TORCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The sender of a message: an actor slot and its incarnation."""

    actor_id: ActorId
    incarnation: int
    """0 for the first process in this slot, one more with each restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of every actor: what it will send. Checked before admission."""

    peer: Peer
    schema_hash: str
    """Of the segments that this actor sends; empty for an evaluator, which sends none."""

    software: str = SOFTWARE
    """Its versions; they must fit those of its peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """Whole segments, as columns of shape (segments, rows, ...)."""

    peer: Peer
    seq: int
    """1 for the first message of an incarnation; no gaps."""

    columns: Columns
    rows: IntArray
    """(segments,) number of filled rows of each."""

    transitions: int
    """Transitions that the ledger counts for this message."""

    produced: int
    """Transitions that this incarnation has produced so far, including these."""

    env_steps: int
    """Environment steps behind them."""

    model_version: ModelVersion
    """The newest model that acted in this message."""


ACTOR_PHASES = ("env", "sleep", "policy", "wait", "send")
"""The phases of an actor's time. In `sleep` environments neither compute nor wait for a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorReport:
    """Metrics of an actor, sent at intervals and once more, `final`, when it finishes."""

    peer: Peer
    produced: int
    """Transitions of this incarnation so far, sent or not."""

    env_steps: int
    episodes: int
    shares: Mapping[str, float]
    """Seconds since the last report, by phase."""

    episode_returns: Array = field(default_factory=lambda: np.empty(0, np.float64))
    """(episodes,) float64, of those that ended since the last report; the newest, if a message
    cannot hold all. Arrays, since a batch of small environments can end a hundred thousand per
    second."""

    episode_lengths: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    info_sums: Mapping[str, float] = field(default_factory=dict)
    info_counts: Mapping[str, float] = field(default_factory=dict)
    """Of the numbers in the infos of these episodes, see `EnvStep.info`: by name, their sums, and
    the number of episodes that have them."""

    policy: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the policy, for instance its exploration rate, and of the step processor."""

    final: bool = False
    seq: int = 0
    """1 for the first report of an incarnation; no gaps. Set by the link."""


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

_AFTER_SCHEDULES = 10**15
"""More environment steps than any schedule lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """An immutable snapshot of a model's parameters."""

    params: Params
    version: ModelVersion = _UNNUMBERED
    """Optimisation steps of the run when it was taken. Set by the trainer."""

    env_steps: int = 0
    """Environment steps of the whole run when it was taken; schedules depend on them."""

    n_actors: int = 0
    """Number of actors of the run when it was published, on which ladders of exploration depend; 0
    if unknown."""

    def explored(self) -> ModelInfo:
        """Return it for acting outside its run: at the end of all schedules if it learned offline.

        The run of such a model has no environment steps, so no first ones with random actions.
        """
        offline = self.version > 0 and not self.env_steps
        return replace(self, env_steps=_AFTER_SCHEDULES) if offline else self


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvChange:
    """Keyword arguments that training environments get from their next episode on."""

    number: int = 0
    """1 for the first change of a run, one more with each; 0 is no change."""

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Plain values, as in JSON. They are laid over those that the run began with."""


Report = ActorReport | EvaluationReport
"""Messages that need no credit, and are still delivered."""

Message = Hello | Experience | ActorReport | EvaluationReport
"""Messages that a learner's link delivers."""
