"""Stage `transport`: the cost of the protocol. Experience between two processes, and bare frames.

The bare sockets move the same frames without credit, acknowledgement, checks or conversion to
arrays; they are the upper bound of any protocol over ZeroMQ. Nothing is stored in replay.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import zmq

from asyncrl.bench.measure import Repeating, Stage
from asyncrl.bench.result import Quantity
from asyncrl.bench.workload import Workload
from asyncrl.core.errors import AsyncRLError
from asyncrl.core.launcher import Launcher, Progress
from asyncrl.core.messages import Experience, Hello, Peer
from asyncrl.core.segment import ColumnSpec, SegmentSchema, make_schema
from asyncrl.core.transport import Transport
from asyncrl.core.types import ActorId, ModelVersion
from asyncrl.supervision.local import LocalLauncher
from asyncrl.transport.wire import WireFormat
from asyncrl.transport.zeromq import ZmqTransport, ZmqTransportConfig

Case = Literal["CartPole-size rows", "84x84 frames"]

CASES: dict[Case, ColumnSpec] = {
    "CartPole-size rows": ColumnSpec("obs", "float32", (4,)),
    "84x84 frames": ColumnSpec("obs", "uint8", (84, 84)),
}
"""Name of a case -> the observation column that it sends."""

_PEER = Peer(actor_id=ActorId(0), incarnation=0)
_WAIT_S = 0.2
_START_DEADLINE_S = 60.0
_MAX_MESSAGE_BYTES = 16 << 20


def rows_schema(case: Case, length: int) -> SegmentSchema:
    """Return segments of one-step experience with such observations."""
    return make_schema(
        [
            CASES[case],
            ColumnSpec("action", "int64"),
            ColumnSpec("reward", "float32"),
            ColumnSpec("flags", "uint8"),
            ColumnSpec("model_version", "int32"),
        ],
        length=length,
        lookahead=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traffic:
    """One message that is sent repeatedly."""

    schema: SegmentSchema
    segments: int
    window: int

    @property
    def transitions(self) -> int:
        return self.segments * self.schema.length

    def message(self, seq: int, like: Experience | None = None) -> Experience:
        return Experience(
            peer=_PEER,
            seq=seq,
            columns=like.columns
            if like
            else {
                c.name: np.ones((self.segments, self.schema.rows, *c.shape), c.dtype)
                for c in self.schema.columns
            },
            rows=np.full(self.segments, self.schema.rows, np.int64),
            transitions=self.transitions,
            produced=self.transitions * seq,
            env_steps=self.transitions * seq,
            model_version=ModelVersion(0),
        )


def transport_stage(workload: Workload, case: Case) -> Stage:
    """Return messages of full segments, as an actor sends and a learner receives them."""
    schema = rows_schema(case, workload.segment_length)
    window = ZmqTransportConfig().window
    most = max(1, _MAX_MESSAGE_BYTES // schema.segment_bytes)
    segments = min(workload.segments_per_message, most)
    traffic = _Traffic(schema=schema, segments=segments, window=window)
    quantity = Quantity(
        stage="transport",
        env=case,
        unit="transitions/s",
        limit_is="bare PUSH/PULL",
        unit_bytes=schema.segment_bytes // schema.length,
        settings={
            "segment_length": workload.segment_length,
            "segments_per_message": segments,
            "window": window,
        },
    )
    return Stage(
        quantities=[quantity],
        value=lambda: [_over_our_link(workload, traffic)],
        limit=lambda: [_over_bare_sockets(workload, traffic)],
    )


def _over_our_link(workload: Workload, traffic: _Traffic) -> float:
    """Receive what an actor's link sends."""
    config = ZmqTransportConfig(window=traffic.window)
    with LocalLauncher() as launcher:
        transport = ZmqTransport.ipc(launcher.directory, schema=traffic.schema, config=config)
        link = transport.listen()
        received = itertools.count(1)

        def receive() -> int:
            count = 0
            for message in link.poll(_WAIT_S):
                if isinstance(message, Experience):
                    count += 1
                    link.acknowledge(_PEER, message.seq)
                    if message.seq != (due := next(received)):
                        raise AsyncRLError(f"message {message.seq} arrived instead of {due}")
            return count

        try:
            launcher.launch(_PEER, partial(_send_ours, link.address, traffic))
            return _rate(launcher, receive, workload) * traffic.transitions
        finally:
            link.close()


def _over_bare_sockets(workload: Workload, traffic: _Traffic) -> float:
    """Receive the same frames from a bare socket."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    # The sender must be closed last: a socket full of a dead sender's messages would never close.
    with LocalLauncher() as launcher, context, context.socket(zmq.PULL) as socket:
        endpoint = f"ipc://{launcher.directory}/bare"
        socket.setsockopt(zmq.RCVHWM, traffic.window)
        socket.setsockopt(zmq.RCVTIMEO, int(_WAIT_S * 1000))
        socket.bind(endpoint)
        launcher.launch(_PEER, partial(_send_bare, endpoint, traffic))
        return _rate(launcher, partial(_receive_bare, socket), workload) * traffic.transitions


def _receive_bare(socket: zmq.Socket[bytes]) -> int:
    try:
        socket.recv_multipart(copy=False)
    except zmq.Again:
        return 0
    return 1


def _rate(launcher: Launcher, receive: Callable[[], int], workload: Workload) -> float:
    """Return messages per second, from the first one on."""
    deadline = time.monotonic() + _START_DEADLINE_S
    while not receive():
        if ended := launcher.exits(0.0):
            raise AsyncRLError(f"the sender failed: {ended[0].error}\n\n{ended[0].text}")
        if time.monotonic() > deadline:
            raise AsyncRLError(f"no message came in {_START_DEADLINE_S:.0f} s")
    receiving = Repeating(receive, warm_up_seconds=workload.warm_up_seconds)
    return receiving.rate(workload.seconds)


def _send_ours(address: Transport, traffic: _Traffic, progress: Progress) -> None:
    """Send as an actor does, checking for a model before each message."""
    link = address.connect(_PEER)
    link.hello(Hello(peer=_PEER, schema_hash=traffic.schema.hash()))
    first = message = traffic.message(1)
    while True:
        link.latest_model("act", 0)
        while not link.send(message, _WAIT_S):
            continue
        progress.turn(message.produced)
        message = traffic.message(message.seq + 1, like=first)


def _send_bare(endpoint: str, traffic: _Traffic, progress: Progress) -> None:
    """Push the frames of one message repeatedly."""
    frames = WireFormat(schema=traffic.schema, run_id="0" * 32).encode(traffic.message(1))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, traffic.window)
    socket.connect(endpoint)
    sent = 0
    while True:
        socket.send_multipart(frames)
        sent += traffic.transitions
        progress.turn(sent)
