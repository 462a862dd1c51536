"""Stage `learner`: the learner's turns, batches out of a full replay and optimisation steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import SupportsFloat

from asyncrl.benchmarking.load import Load, made_up_experience
from asyncrl.benchmarking.rates import Repeating
from asyncrl.benchmarking.replay import filled
from asyncrl.benchmarking.result import Quantity
from asyncrl.benchmarking.rounds import Rates
from asyncrl.core.replay_buffer import in_batches
from asyncrl.core.types import Columns


class LearnerStage:
    """Sampling and learning, against learning from one and the same batch."""

    def __init__(self, load: Load, *, slices: int = 0) -> None:
        """Make and fill what is needed; 0 slices are as many as the workload's length has."""
        workload = load.workload
        self._load = load
        segments = max(1, min(64, load.capacity // workload.segment_length))
        message = made_up_experience(load.schema, load.spec, segments)
        self._buffer = filled(load.async_config().replay, load, message)
        batch = self._buffer.sample(workload.batch_size)
        self._at_once = load.async_config().trainer.draw_at_once(batch)
        self._agent = load.agent.build(load.spec, load.context)
        self._record: Mapping[str, SupportsFloat] = {}
        self.quantities = (
            Quantity(
                stage="learner",
                env=workload.env,
                unit="opt steps/s",
                limit_is="one fixed batch",
                settings={
                    "env_kwargs": dict(workload.env_kwargs),
                    "agent": type(load.agent).__name__.removesuffix("Config"),
                    "hidden": list(workload.hidden),
                    "device": str(getattr(self._agent, "device", "")),
                    "batch_size": workload.batch_size,
                    "frame_stack": load.frame_stack,
                    "batches_per_draw": self._at_once,
                    "capacity": load.capacity,
                },
            ),
        )

        self.slices = slices or workload.slices
        self._slice_seconds = workload.seconds / self.slices
        self._turn = self._repeating(self._turns)
        self._fixed = self._repeating(lambda: self._opt(batch))

    def measure_value(self) -> Rates:
        """Sample, learn, and so on."""
        return [self._turn.rate(self._slice_seconds)]

    def measure_limit(self) -> Rates:
        """Learn from the same batch again and again."""
        return [self._fixed.rate(self._slice_seconds)]

    def close(self) -> None:
        """Let go of the memory."""
        for name in ("_turn", "_fixed", "_buffer", "_agent"):
            with contextlib.suppress(AttributeError):
                delattr(self, name)

    def _turns(self) -> int:
        """Draw batches and learn from them, as `AsyncTrainer` does."""
        batch_size = self._load.workload.batch_size
        together = self._buffer.sample(self._at_once * batch_size)
        return sum(map(self._opt, in_batches(together, batch_size)))

    def _opt(self, batch: Columns) -> int:
        self._record = self._agent.opt(batch)
        return 1

    def _settle(self) -> None:
        """Wait for the device: it may still be at work on steps that were only ordered."""
        for value in self._record.values():
            float(value)

    def _repeating(self, turn: Callable[[], int]) -> Repeating:
        warm_up_seconds = self._load.workload.warm_up_seconds
        return Repeating(turn, warm_up_seconds=warm_up_seconds, settle=self._settle)
