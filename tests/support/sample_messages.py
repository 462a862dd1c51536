"""Messages of a small schema, and how to compare what comes out at the other end."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from asyncrl.core.messages import ActorReport, EvaluationReport, Experience, Hello, ModelInfo, Peer
from asyncrl.core.segment import ColumnSpec, make_schema
from asyncrl.core.types import ActorId, Array, ModelVersion

SCHEMA = make_schema(
    [
        ColumnSpec("obs", "float32", (2, 3)),
        ColumnSpec("flags", "uint8"),
        ColumnSpec("action", "int64"),
    ],
    length=4,
    lookahead=1,
)


def make_peer(actor_id: int = 0, incarnation: int = 0) -> Peer:
    return Peer(actor_id=ActorId(actor_id), incarnation=incarnation)


PEER = make_peer()


def make_hello(peer: Peer = PEER) -> Hello:
    return Hello(peer=peer, schema_hash=SCHEMA.hash())


def make_experience(seq: int, peer: Peer = PEER, segments: int = 2) -> Experience:
    """Return a message whose columns hold its number, and no end of an episode."""
    return Experience(
        peer=peer,
        seq=seq,
        columns={
            c.name: np.full((segments, SCHEMA.rows, *c.shape), value, c.dtype)
            for c in SCHEMA.columns
            for value in [0 if c.name == "flags" else seq % 256]
        },
        rows=np.full(segments, SCHEMA.rows, np.int64),
        transitions=segments * SCHEMA.length,
        produced=segments * SCHEMA.length * seq,
        env_steps=segments * SCHEMA.length * seq,
        model_version=ModelVersion(0),
    )


def make_report(peer: Peer = PEER, produced: int = 5, seq: int = 1) -> ActorReport:
    return ActorReport(
        peer=peer,
        produced=produced,
        env_steps=6,
        episodes=2,
        shares={"env": 0.5},
        episode_returns=np.array([1.5, -2.0]),
        info_sums={"success": 1.0},
        info_counts={"success": 2.0},
        episode_lengths=np.array([7, 9]),
        policy={"epsilon": 0.1},
        final=True,
        seq=seq,
    )


def make_evaluation(peer: Peer = PEER, version: int = 0, score: float = 1.5) -> EvaluationReport:
    return EvaluationReport(
        peer=peer, model_version=ModelVersion(version), score=score, record={"a": 1.0}, seq=1
    )


def make_model(version: int, value: float = 0.0) -> ModelInfo:
    params: dict[str, Array] = {
        "w": np.full((3, 2), value, np.float32),
        "b": np.full(3, value, np.float64),
    }
    return ModelInfo(version=ModelVersion(version), params=params, env_steps=10 * version)


def same(a: Any, b: Any) -> bool:
    """Whether two messages say the same, down to dtypes and shapes of their arrays."""
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if hasattr(a, "__dataclass_fields__"):
        return type(a) is type(b) and all(
            same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)
        )
    return bool(a == b)
