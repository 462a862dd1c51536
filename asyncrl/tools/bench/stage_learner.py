"""Stage `learner`: the learner's loop, which samples batches from a full replay and optimises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import SupportsFloat

import numpy as np

from asyncrl.agents.parts.products import matrix_products
from asyncrl.core.agent import Agent, AgentConfig, build_agent
from asyncrl.core.replay_buffer import ReplayBuffer, ReplayBufferConfig, in_batches
from asyncrl.core.segment import SegmentSchema
from asyncrl.core.torch_threads import torch_threads
from asyncrl.core.types import Columns
from asyncrl.learner.config import AsyncTrainerConfig
from asyncrl.tools.bench.load import Load, synthetic_experience
from asyncrl.tools.bench.measure import Stage, side_by_side
from asyncrl.tools.bench.result import Quantity

_CYCLE_OPT_STEPS = 6
"""Optimisation steps after which policies that are updated in each second or third have had the
same share of them."""


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
        self.agent, self.buffer, self.batch_size = agent, buffer, batch_size
        self._batch = buffer.sample(batch_size)
        self.at_once = AsyncTrainerConfig(batch_size=batch_size).draw_at_once(self._batch)
        self._record: Mapping[str, SupportsFloat] = {}
        self._products: Callable[[], None] | None = None

    def from_replay(self) -> int:
        """Sample batches and optimise on them, as `AsyncTrainer` does; return their number."""
        together = self.buffer.sample(self.at_once * self.batch_size)
        return sum(map(self._opt, in_batches(together, self.batch_size)))

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
    # Products of a captured step are not seen. The replay is shared: memory may not hold two.
    plain: AgentConfig = replace(load.agent, accelerate="off")  # type: ignore[type-var]
    other = Turns(build_agent(plain, load.spec, load.context), turns.buffer, turns.batch_size)
    return side_by_side(
        [_quantity(load, turns, case="update", limit_is="its matrix products alone")],
        [turns.from_one_batch],
        [other.products_alone],
        load.workload,
        settle=turns.settle,
    )


def _turns(load: Load) -> Turns:
    segments = max(1, min(64, load.capacity // load.workload.segment_length))
    message = synthetic_experience(load.schema, load.spec, segments)
    buffer = filled(load.async_config().replay, load.schema, message)
    return Turns(build_agent(load.agent, load.spec, load.context), buffer, load.workload.batch_size)


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
