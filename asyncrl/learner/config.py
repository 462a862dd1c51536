"""Settings of learning from actors: their experience and their models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from asyncrl.core.declared import COMMON, Count, CountOrOff, PositiveOrOff, Within, check_declared
from asyncrl.core.replay_buffer import SAMPLES_PER_INSERT
from asyncrl.core.types import Columns

_DRAW_BYTES = 512 << 10
"""Maximum size of the batches sampled at once: half of a core's private cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncTrainerConfig:
    """Settings of the learner."""

    batch_size: Annotated[Count, COMMON] = 128
    """Transitions per batch."""

    batches_per_draw: Count = 32
    """Maximum number of batches sampled from replay at once, as far as the rate limiter allows and
    a processor's cache holds them. Sampling a single batch takes a third of the time of an
    optimisation step of a small network. Prioritized batches are sampled one by one, since each one
    changes the priorities; so are trajectories, which are handed out whole."""

    sync_interval_opt_steps: Annotated[
        int, Within("[1, inf)", why="actors would never get a new model")
    ] = 50
    """Optimisation steps between two published models."""

    max_lag_s: PositiveOrOff = 0.0
    """Maximum age of the model behind arriving experience, in seconds since it was replaced. Beyond
    it a warning names the actor, and actors are granted fewer messages ahead. 0 disables."""

    max_lag_opt_steps: CountOrOff = 0
    """The same limit in optimisation steps behind the newest model. 0 disables."""

    def __post_init__(self) -> None:
        check_declared(self, "trainer")

    def draw_at_once(self, batch: Columns) -> int:
        """Return how many batches like this one are sampled at once, if the limiter allows it."""
        batch_bytes = sum(column.nbytes for column in batch.values())
        return max(1, min(self.batches_per_draw, _DRAW_BYTES // batch_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBufferProxyConfig:
    """How experience is received."""

    overflow: Literal["block", "drop"] = "block"
    """What happens to a message that the rate limiter does not accept. `block` keeps it and its
    actor waits (backpressure). `drop` discards it and counts it in `ledger/dropped`; no actor
    waits."""

    def __post_init__(self) -> None:
        check_declared(self, "proxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimiterConfig:
    """How often each stored transition is sampled, on average."""

    samples_per_insert: Annotated[PositiveOrOff | None, COMMON] = None
    """Samples per inserted transition. 0 disables the limiter: both sides run as fast as they can.
    Divided by `trainer.batch_size`, it is the number of updates per environment step. With a replay
    of sequences, samples per sequence: `replay.stride` transitions. None: 1 where each transition
    is sampled once; one update per environment step for agents of continuous actions such as SAC,
    and for AWAC and IQL; else 8."""

    min_size: Annotated[Count, COMMON] = 1000
    """Warm-up: transitions in replay, or sequences, before the first sample. No effect where each
    transition is sampled once."""

    band_transitions: Annotated[int, Within("[0, inf)", zero="automatic")] = 0
    """Transitions that inserts may run ahead or behind. 0 chooses the smallest band that runs
    smoothly."""

    def __post_init__(self) -> None:
        check_declared(self, "limiter")

    @property
    def ratio(self) -> float:
        """Samples per insert; the usual ones if the agent was not asked."""
        return SAMPLES_PER_INSERT if self.samples_per_insert is None else self.samples_per_insert
