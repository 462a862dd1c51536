"""Replays whose memory can be measured apart from that of their process. Loads little else."""

from __future__ import annotations

from asyncrl.core.replay_buffer import ReplayBufferConfig
from asyncrl.core.segment import ColumnSpec, make_schema
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig

SEGMENTS = 200
SCHEMA = make_schema(
    [
        ColumnSpec("obs", "uint8", (32 << 10,)),
        ColumnSpec("flags", "uint8"),
        ColumnSpec("action", "int64"),
        ColumnSpec("reward", "float32"),
    ],
    length=16,
    lookahead=1,
)
LARGE: dict[str, ReplayBufferConfig] = {
    "uniform": UniformReplayConfig(capacity=SCHEMA.length * SEGMENTS),
    "prioritized": PrioritizedReplayConfig(capacity=SCHEMA.length * SEGMENTS),
    "queue": TrajectoryQueueConfig(capacity=SCHEMA.length * SEGMENTS),
}
