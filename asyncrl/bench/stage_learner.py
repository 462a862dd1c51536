"""Stage `learner`: the learner's loop, which samples batches from a full replay and optimises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import SupportsFloat

import numpy as np

from asyncrl.agents.parts.products import matrix_products
from asyncrl.bench.load import Load, synthetic_experience
from asyncrl.bench.measure import Stage, side_by_side
from asyncrl.bench.result import Quantity
from asyncrl.core.agent import Agent, build_agent
from asyncrl.core.replay_buffer import (
    AcceptsPriorities,
    ReplayBuffer,
    ReplayBufferConfig,
    in_batches,
)
from asyncrl.core.segment import SegmentSchema
from asyncrl.core.torch_threads import torch_threads
from asyncrl.core.types import Array, Columns, IntArray
from asyncrl.learner.async_trainer import AsyncTrainerConfig
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.uniform import UniformReplayConfig

_INDEX_TABLE = 1024

_CYCLE_OPT_STEPS = 6
"""Optimisation steps after which policies that are updated in each second or third have had the
same share of them."""


KINDS: dict[str, Callable[[int], ReplayBufferConfig]] = {
    "uniform": lambda capacity: UniformReplayConfig(capacity=capacity),
    "prioritized": lambda capacity: PrioritizedReplayConfig(capacity=capacity),
}
"""Name of a kind of replay -> its settings, given the capacity."""


def replay_stage(load: Load, kind: str = "uniform") -> Stage:
    """Return sampling from and pushing into a replay of one kind, against bare arrays."""
    workload, size = load.workload, load.workload.batch_size
    segments = max(1, min(workload.envs_per_actor, load.capacity // workload.segment_length))
    message = synthetic_experience(load.schema, load.spec, segments)
    rows = np.full(segments, load.schema.rows, np.int64)
    buffer = filled(KINDS[kind](load.capacity), load.schema, message)
    bare = BareColumns(message, load.capacity // workload.segment_length)
    batch = buffer.sample(size)
    transitions = segments * workload.segment_length
    settings = {
        "env_kwargs": dict(workload.env_kwargs),
        "capacity": load.capacity,
        "segment_length": workload.segment_length,
        "frame_stack": load.frame_stack,
    }
    quantities = (
        Quantity(
            stage="replay",
            case=f"{kind} {'sample+update' if isinstance(buffer, AcceptsPriorities) else 'sample'}",
            env=workload.env,
            unit="transitions/s",
            limit_is="numpy take",
            unit_bytes=sum(column.nbytes for column in batch.values()) // size,
            settings={**settings, "batch_size": size},
        ),
        Quantity(
            stage="replay",
            case=f"{kind} push",
            env=workload.env,
            unit="transitions/s",
            limit_is="memcpy",
            unit_bytes=load.schema.segment_bytes // load.schema.length,
            settings={**settings, "segments": segments},
        ),
    )
    return side_by_side(
        quantities,
        [
            _times(size, _sampling(buffer, size)),
            _times(transitions, lambda: buffer.push(message, rows)),
        ],
        [_times(size, bare.taking(batch, size)), _times(transitions, lambda: bare.copy(message))],
        workload,
    )


def _sampling(buffer: ReplayBuffer, size: int) -> Callable[[], object]:
    if not isinstance(buffer, AcceptsPriorities):
        return lambda: buffer.sample(size)
    update = buffer.update_priorities
    errors = np.random.default_rng(0).exponential(size=size).astype(np.float32)
    return lambda: update(buffer.sample(size)["index"], errors)


def _times(count: int, work: Callable[[], object]) -> Callable[[], float]:
    """Return work whose amount is `count` each time."""

    def once() -> float:
        work()
        return count

    return once


class BareColumns:
    """Arrays as large as those of a replay, without its logic."""

    def __init__(self, message: Columns, n_slots: int) -> None:
        self._n_slots = max(1, n_slots)
        self._slot = 0
        self._ring = {
            name: np.empty((self._n_slots, *column.shape[1:]), column.dtype)
            for name, column in message.items()
        }
        for _ in range(-(-self._n_slots // len(message["flags"]))):
            self.copy(message)

    def copy(self, message: Columns) -> None:
        """Copy segments in, over the oldest."""
        done, count = 0, len(message["flags"])
        while done < count:
            n = min(count - done, self._n_slots - self._slot)
            for name, column in message.items():
                self._ring[name][self._slot : self._slot + n] = column[done : done + n]
            self._slot = (self._slot + n) % self._n_slots
            done += n

    def taking(self, batch: Columns, batch_size: int) -> Callable[[], list[Array]]:
        """Return a function that copies the bytes of such a batch, from other rows each time."""
        flat = {name: column.reshape(-1, *column.shape[2:]) for name, column in self._ring.items()}
        n_rows = len(flat["flags"])
        kept = {name: array for name, array in batch.items() if _source(name) in flat}
        widest = max(self._rows_of(flat, name, array, batch_size) for name, array in kept.items())
        random = np.random.default_rng(0)
        first = random.integers(n_rows - widest + 1, size=(_INDEX_TABLE, batch_size, 1))
        tables: dict[int, list[IntArray]] = {}
        plan: list[tuple[Array, list[IntArray]]] = []
        for name, array in kept.items():
            rows = self._rows_of(flat, name, array, batch_size)
            if rows not in tables:
                tables[rows] = list((first + np.arange(rows)).reshape(_INDEX_TABLE, -1))
            plan.append((flat[_source(name)], tables[rows]))
        turn = 0

        def take() -> list[Array]:
            nonlocal turn
            turn = (turn + 1) % _INDEX_TABLE
            return [column.take(table[turn], axis=0) for column, table in plan]

        return take

    def _rows_of(self, flat: Columns, name: str, array: Array, batch_size: int) -> int:
        """Return how many stored rows one row of a batch needs: several if frames are stacked."""
        row_bytes = flat[_source(name)][0].nbytes
        return max(1, array.nbytes // (batch_size * row_bytes)) if name in _OBS else 1


_OBS = {"obs", "next_obs"}


def _source(name: str) -> str:
    """Return the stored column from which a column of a batch is made."""
    return {"next_obs": "obs", "discount": "flags"}.get(name, name)


def filled(config: ReplayBufferConfig, schema: SegmentSchema, message: Columns) -> ReplayBuffer:
    """Build a replay and fill it."""
    buffer = config.build(schema, seed=0)
    rows = np.full(len(message["flags"]), schema.rows, np.int64)
    before = -1
    while len(buffer) > before:
        before = len(buffer)
        buffer.push(message, rows)
    return buffer


class Turns:
    """An agent's optimisation steps, from a replay or from one batch."""

    def __init__(self, agent: Agent, buffer: ReplayBuffer, batch_size: int) -> None:
        self.agent, self._buffer, self._batch_size = agent, buffer, batch_size
        self._batch = buffer.sample(batch_size)
        self.at_once = AsyncTrainerConfig(batch_size=batch_size).draw_at_once(self._batch)
        self._record: Mapping[str, SupportsFloat] = {}
        self._products: Callable[[], None] | None = None

    def from_replay(self) -> int:
        """Sample batches and optimise on them, as `AsyncTrainer` does; return their number."""
        together = self._buffer.sample(self.at_once * self._batch_size)
        return sum(map(self._opt, in_batches(together, self._batch_size)))

    def from_one_batch(self) -> int:
        """Optimise on the same batch again."""
        return self._opt(self._batch)

    def products_alone(self) -> int:
        """Compute the matrix products of some optimisation steps, and nothing else of them."""
        if self._products is None:
            self._products = matrix_products(self.from_one_batch, _CYCLE_OPT_STEPS)
        self._products()
        return _CYCLE_OPT_STEPS

    def settle(self) -> None:
        """Wait for the device, which may still execute queued steps."""
        for value in self._record.values():
            float(value)

    def _opt(self, batch: Columns) -> int:
        self._record = self.agent.opt(batch)
        return 1


def learner_stage(load: Load, *, slices: int = 0) -> Stage:
    """Return sampling and optimisation, against optimisation on one fixed batch."""
    turns = _turns(load)
    return side_by_side(
        [_quantity(load, turns, case="", limit_is="one fixed batch")],
        [turns.from_replay],
        [turns.from_one_batch],
        load.workload,
        slices=slices,
        settle=turns.settle,
    )


def update_stage(load: Load) -> Stage:
    """Return optimisation on one fixed batch, against its matrix products alone."""
    turns = _turns(load)
    return side_by_side(
        [_quantity(load, turns, case="update", limit_is="its matrix products alone")],
        [turns.from_one_batch],
        [turns.products_alone],
        load.workload,
        settle=turns.settle,
    )


def _turns(load: Load) -> Turns:
    workload = load.workload
    segments = max(1, min(64, load.capacity // workload.segment_length))
    message = synthetic_experience(load.schema, load.spec, segments)
    buffer = filled(load.async_config().replay, load.schema, message)
    return Turns(build_agent(load.agent, load.spec, load.context), buffer, workload.batch_size)


def _quantity(load: Load, turns: Turns, *, case: str, limit_is: str) -> Quantity:
    workload = load.workload
    return Quantity(
        stage="learner",
        case=case,
        env=workload.env,
        unit="opt steps/s",
        limit_is=limit_is,
        settings={
            "env_kwargs": dict(workload.env_kwargs),
            "agent": type(load.agent).__name__.removesuffix("Config"),
            "hidden": list(workload.hidden),
            "device": str(getattr(turns.agent, "device", "")),
            "threads": torch_threads(),
            "batch_size": workload.batch_size,
            "frame_stack": load.frame_stack,
            "batches_per_draw": turns.at_once,
            "capacity": load.capacity,
        },
    )
