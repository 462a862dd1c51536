"""What does the protocol cost? Experience between two processes, against a bare PUSH/PULL.

The bare one moves the same frames with no credit, no acknowledgement, no checks and no arrays at
the end; it bounds what any protocol over ZeroMQ can do. Stores nothing in replay.

    python -m benchmarks.bench_transport --segments 64
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import zmq

from asyncrl.messages import Experience, Hello, Peer
from asyncrl.segment import ColumnSpec, SegmentSchema, make_schema
from asyncrl.transport import ActorLink
from asyncrl.transports.zeromq import ZmqTransport, ZmqTransportConfig
from asyncrl.types import ActorId, ModelVersion
from asyncrl.wire import WireFormat
from benchmarks.common import compare, in_turns, make_parser, positive, provenance, save, show

__all__ = ["receive_bare", "receive_ours"]

CARTPOLE = make_schema(
    [
        ColumnSpec("obs", "float32", (4,)),
        ColumnSpec("action", "int64"),
        ColumnSpec("reward", "float32"),
        ColumnSpec("flags", "uint8"),
        ColumnSpec("model_version", "int32"),
    ],
    length=32,
    lookahead=1,
)
PEER = Peer(actor_id=ActorId(0), incarnation=0)
WAIT_S = 1.0
SPAWN = multiprocessing.get_context("spawn")


def make_message(schema: SegmentSchema, segments: int, seq: int) -> Experience:
    """Return a message of whole segments."""
    n = segments * schema.length
    return Experience(
        peer=PEER,
        seq=seq,
        columns={
            c.name: np.zeros((segments, schema.rows, *c.shape), c.dtype) for c in schema.columns
        },
        rows=np.full(segments, schema.rows, np.int64),
        transitions=n,
        produced=n * seq,
        env_steps=n * seq,
        model_version=ModelVersion(0),
    )


def send_bare(endpoint: str, segments: int, messages: int, window: int, received: Event) -> None:
    """Push the frames of one message again and again, and wait until they have been received.

    What a receiver at its high-water mark has not read yet is lost when the sender disconnects.
    """
    frames = WireFormat(schema=CARTPOLE, run_id="0" * 32).encode(
        make_message(CARTPOLE, segments, 1)
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.PUSH) as socket:
        socket.setsockopt(zmq.SNDHWM, window)
        socket.connect(endpoint)
        for _ in range(messages):
            socket.send_multipart(frames)
        received.wait()


def send_ours(address: ZmqTransport, segments: int, messages: int) -> None:
    """Send messages as an actor does, looking for a model before each."""
    link: ActorLink = address.connect(PEER)
    link.hello(Hello(peer=PEER, schema_hash=CARTPOLE.hash()))
    columns = make_message(CARTPOLE, segments, 1)
    for seq in range(1, messages + 1):
        link.latest_model("act", 0)
        message = Experience(
            peer=PEER,
            seq=seq,
            columns=columns.columns,
            rows=columns.rows,
            transitions=columns.transitions,
            produced=columns.transitions * seq,
            env_steps=columns.transitions * seq,
            model_version=columns.model_version,
        )
        while not link.send(message, WAIT_S):
            continue
    while not link.drain(WAIT_S):
        continue
    link.close()


def receive_bare(directory: Path, segments: int, messages: int, window: int) -> float:
    """Return the seconds from the first message to the last."""
    endpoint = f"ipc://{directory}/bare"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.PULL) as socket:
        socket.setsockopt(zmq.RCVHWM, window)
        socket.bind(endpoint)
        received = SPAWN.Event()
        sender = start(send_bare, endpoint, segments, messages, window, received)
        socket.recv_multipart(copy=False)
        began = time.perf_counter()
        for _ in range(messages - 1):
            socket.recv_multipart(copy=False)
        seconds = time.perf_counter() - began
        received.set()
        sender.join()
    return seconds


def receive_ours(directory: Path, segments: int, messages: int, window: int) -> float:
    """Return the seconds from the first message to the last."""
    config = ZmqTransportConfig(window=window)
    link = ZmqTransport.ipc(directory, schema=CARTPOLE, config=config).listen()
    sender = start(send_ours, link.address, segments, messages)
    began, seen = 0.0, 0
    while seen < messages:
        for message in link.poll(WAIT_S):
            if isinstance(message, Experience):
                began = began or time.perf_counter()
                seen = message.seq
                link.acknowledge(PEER, seen)
    seconds = time.perf_counter() - began
    while sender.is_alive():
        link.poll(0.01)
    sender.join()
    assert not link.counters, link.counters
    link.close()
    return seconds


def start(target: Callable[..., None], *args: object) -> multiprocessing.process.BaseProcess:
    """Start a sender in a process of its own."""
    process = SPAWN.Process(target=target, args=args)
    process.start()
    return process


def measured(
    receive: Callable[[Path, int, int, int], float], segments: int, messages: int, window: int
) -> float:
    """Return messages a second."""
    with tempfile.TemporaryDirectory() as directory:
        return (messages - 1) / receive(Path(directory), segments, messages, window)


def main() -> None:
    """Measure both in turns."""
    parser = make_parser(__doc__)
    parser.add_argument("--segments", type=positive, default=64, help="of 33 rows, in one message")
    parser.add_argument("--messages", type=int, default=0, help="0: about 2 GB, 50,000 at most")
    parser.add_argument("--window", type=positive, default=8, help="messages not acknowledged")
    args = parser.parse_args()
    size = args.segments * CARTPOLE.segment_bytes
    messages = args.messages or max(100, min(50_000, int(2e9) // size))
    origin = provenance()
    receivers = {"asyncrl": receive_ours, "bare": receive_bare}
    rounds = in_turns(
        {
            name: partial(measured, receive, args.segments, messages, args.window)
            for name, receive in receivers.items()
        },
        args.repeats,
    )
    what = f"Messages of {args.segments * CARTPOLE.length:,} transitions / bare PUSH and PULL"
    comparison = compare(rounds, "asyncrl", "bare", what=what, unit="messages/s")
    per_s = comparison.ours or 0.0
    path = save(
        args.results,
        f"transport_{args.segments}",
        question=__doc__,
        settings={"segments": args.segments, "messages": messages, "window": args.window},
        comparisons=[comparison],
        origin=origin,
        details={
            "messages_per_s": rounds,
            "bytes_per_message": size,
            "transitions_per_s": per_s * args.segments * CARTPOLE.length,
            "bytes_per_s": per_s * size,
        },
    )
    show(path)


if __name__ == "__main__":
    main()
