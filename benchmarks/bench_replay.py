"""How long does a batch take to sample? Against bare index_select, and against peers' priorities.

Uniform replay of 1 M CartPole-sized transitions, and of single Atari frames, beside
`torch.index_select` on arrays that hold the same columns: the same bytes for 256 rows, drawn
beforehand. Prioritized replay of 1 M transitions, sampled and told 256 new priorities, beside that
of each peer whose virtual environment is there. And uniform replay behind its receiving thread,
while that stores messages of 4 MiB as fast as it can: the 90th percentile, of waiting and sampling.

    python -m benchmarks.bench_replay [--rows N] [--peers DIRECTORY]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import quantiles

import numpy as np
import torch

from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import Experience, Message, ModelInfo, Peer
from asyncrl.core.segment import ColumnSpec, SegmentSchema, make_schema
from asyncrl.core.transport import Topic, Transport
from asyncrl.core.types import ActorId, Array, ModelVersion
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.uniform import UniformReplay, UniformReplayConfig
from benchmarks.common import (
    ROOT,
    Comparison,
    Rounds,
    compare,
    in_turns,
    make_parser,
    peer_python,
    positive,
    provenance,
    run_peer,
    save,
    show,
)

PEERS = ("cpprb", "tianshou", "torchrl")
FRAME = (84, 84)
LENGTH = 32
MESSAGE_BYTES = 4 << 20
PAUSE_S = 0.0005  # between two samples: a learner does something else, too


def one_step_schema(obs: ColumnSpec) -> SegmentSchema:
    """Return the segments of one-step transitions with such observations."""
    columns = [
        obs,
        ColumnSpec("action", "int64"),
        ColumnSpec("reward", "float32"),
        ColumnSpec("flags", "uint8"),
        ColumnSpec("model_version", "int32"),
    ]
    return make_schema(columns, length=LENGTH, lookahead=1)


def segments(schema: SegmentSchema, rows: int) -> tuple[dict[str, Array], Array]:
    """Return whole segments of noise without an episode's end."""
    random = np.random.default_rng(0)
    n = rows // LENGTH
    columns: dict[str, Array] = {}
    for c in schema.columns:
        shape = (n, schema.rows, *c.shape)
        columns[c.name] = (
            np.zeros(shape, c.dtype)
            if c.name == "flags"
            else random.integers(0, 9, shape, np.uint8).astype(c.dtype)
        )
    return columns, np.full(n, schema.rows)


def microseconds(turn: Callable[[], object], seconds: float) -> float:
    """Return the mean time of one `turn`, as the peers' scripts do."""
    for _ in range(50):
        turn()
    began, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds or not count:
        turn()
        count += 1
    return 1e6 * elapsed / count


def index_select(batch: Mapping[str, Array], rows: int, batch_size: int) -> Callable[[], object]:
    """Return what selects the columns of such batches, from as many rows, and does nothing else."""
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.from_numpy(np.resize(column, (rows, *column.shape[1:]))) for column in batch.values()
    ]
    drawn = itertools.cycle(torch.randint(rows, (512, batch_size), generator=generator).unbind())

    def turn() -> object:
        index = next(drawn)
        return [torch.index_select(tensor, 0, index) for tensor in tensors]

    return turn


def compare_uniform(what: str, obs: ColumnSpec, rows: int, args: argparse.Namespace) -> Comparison:
    """Measure uniform replay beside bare selection."""
    schema, size = one_step_schema(obs), args.batch_size
    replay: UniformReplay = UniformReplayConfig(capacity=rows).build(schema, 0)
    replay.push(*segments(schema, rows))
    select = index_select(replay.sample(size), rows, size)
    measures = {
        what: lambda: microseconds(lambda: replay.sample(size), args.seconds),
        "index_select": lambda: microseconds(select, args.seconds),
    }
    rounds = in_turns(measures, args.repeats)
    text = f"sample {size} of {rows:,} {what} / torch.index_select of as many bytes"
    return compare(rounds, what, "index_select", what=text, unit="us")


def compare_prioritized(args: argparse.Namespace) -> list[Comparison]:
    """Measure prioritized replay beside each peer's; theirs hold a million transitions."""
    schema, size = one_step_schema(ColumnSpec("obs", "float32", (4,))), args.batch_size
    replay = PrioritizedReplayConfig(capacity=args.rows).build(schema, 0)
    replay.push(*segments(schema, args.rows))
    random = np.random.default_rng(0)
    replay.update_priorities(np.arange(len(replay)), random.random(len(replay)))
    errors = itertools.cycle(random.random((512, size)).astype(np.float32))

    def turn() -> None:
        batch = replay.sample(size)
        replay.update_priorities(batch["index"], next(errors))

    def peers_us(python: Path, name: str) -> float:
        printed = run_peer(python, name, ["per", "--seconds", args.seconds, "--threads", 1])
        return 1e6 / float(printed["value"])

    measures: dict[str, Callable[[], float]] = {"asyncrl": lambda: microseconds(turn, args.seconds)}
    for name in PEERS:
        if python := peer_python(args.peers / name):
            measures[name] = lambda p=python, n=name: peers_us(p, n)  # type: ignore[misc]
    rounds = in_turns(measures, args.repeats)
    text = f"sample {size} of {args.rows:,} by priority and update them /"
    return [
        compare(rounds, "asyncrl", name, what=f"{text} {name}", unit="us")
        for name in rounds
        if name != "asyncrl"
    ]


class Flood:
    """A learner's link on which a long message waits at every poll, until `dry`."""

    def __init__(self, schema: SegmentSchema) -> None:
        columns, filled = segments(schema, MESSAGE_BYTES // schema.segment_bytes * LENGTH)
        self.dry = False
        self._message = Experience(
            peer=Peer(actor_id=ActorId(0), incarnation=0),
            seq=1,
            columns=columns,
            rows=filled,
            transitions=len(filled) * LENGTH,
            produced=0,
            env_steps=0,
            model_version=ModelVersion(0),
        )

    @property
    def counters(self) -> Mapping[str, int]:
        """Everything counts."""
        return {}

    def poll(self, timeout_s: float, waited: Callable[[], object] = lambda: None) -> list[Message]:
        """Return the same message again."""
        if not self.dry:
            return [self._message]
        time.sleep(timeout_s)  # a thread that spun would keep the interpreter's lock
        waited()
        return []

    def wake(self) -> None:
        """Nobody sleeps."""

    def acknowledge(self, peer: Peer, seq: int) -> None:
        """Nobody waits."""

    def admit(self, peer: Peer, *, evaluates: bool = False) -> Transport:
        """Nobody is to come."""
        raise NotImplementedError

    def revoke(self, peer: Peer) -> None:
        """Nobody has a key."""

    def refuse(self, peer: Peer, reason: str) -> None:
        """Nobody is there."""

    def publish(self, model: ModelInfo, topic: Topic) -> None:
        """Nobody listens."""

    def stop_actors(self) -> None:
        """Nobody acts."""

    def close(self) -> None:
        """Hold nothing."""


def latency_us(proxy: ReplayBufferProxy, batch_size: int, seconds: float) -> float:
    """Return the 90th percentile of the time that `sample` takes."""
    times: list[float] = []
    ready = time.perf_counter() + seconds
    while time.perf_counter() < ready or len(times) < 10:
        began = time.perf_counter()
        proxy.sample(batch_size)
        times.append(time.perf_counter() - began)
        time.sleep(PAUSE_S)
    return 1e6 * quantiles(times, n=10)[-1]


def compare_pushing(what: str, obs: ColumnSpec, rows: int, args: argparse.Namespace) -> Comparison:
    """Measure how long sampling takes while experience pours in, and at rest."""
    schema, interrupter = one_step_schema(obs), Interrupter()
    link = Flood(schema)
    proxy = ReplayBufferProxy(
        link,
        UniformReplayConfig(capacity=rows).build(schema, 0),
        RateLimiterConfig(samples_per_insert=0.0).build(max_insert=rows, batch_size=1),
        interrupter,
    )
    proxy.start()
    while len(proxy.buffer) < proxy.buffer.capacity:  # what is new takes longer to write to
        interrupter.raise_if_failed()
        time.sleep(0.01)
    rounds: Rounds = {"pushing": [], "at rest": []}
    for _ in range(args.repeats):
        for name, link.dry in (("pushing", False), ("at rest", True)):
            time.sleep(0.2)
            rounds[name].append(latency_us(proxy, args.batch_size, args.seconds))
    proxy.close()
    interrupter.raise_if_failed()
    text = f"90 % of samples of {args.batch_size} {what} beside a pushing thread / at rest"
    return compare(rounds, "pushing", "at rest", what=text, unit="us")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=positive, default=1_000_000, help="transitions in replay")
    parser.add_argument("--frames", type=positive, default=50_000, help="frames in replay")
    parser.add_argument("--batch-size", type=positive, default=256)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--peers", type=Path, default=ROOT / ".peers", help="their environments")
    return parser.parse_args(argv)


def main() -> None:
    """Measure, save, and print one JSON line."""
    args = arguments()
    torch.set_num_threads(1)
    origin = provenance()
    comparisons = [
        compare_uniform("transitions", ColumnSpec("obs", "float32", (4,)), args.rows, args),
        compare_uniform("frames", ColumnSpec("obs", "uint8", FRAME), args.frames, args),
        compare_pushing("transitions", ColumnSpec("obs", "float32", (4,)), args.rows, args),
        compare_pushing("frames", ColumnSpec("obs", "uint8", FRAME), args.frames, args),
        *compare_prioritized(args),
    ]
    path = save(
        args.results,
        "replay",
        question=__doc__,
        settings={
            "rows": args.rows,
            "frames": args.frames,
            "batch_size": args.batch_size,
            "seconds": args.seconds,
            "repeats": args.repeats,
        },
        comparisons=comparisons,
        origin=origin,
    )
    show(path)


if __name__ == "__main__":
    main()
