"""How long sampling a batch takes, compared with index_select and with a replay at rest.

Uniform replay of 1 M CartPole-sized transitions, and of single Atari frames, beside
`torch.index_select` on arrays with the same columns: the same bytes for 256 rows with indices
chosen beforehand. Hindsight replay of rows as FetchReach's beside uniform replay of the same
rows, with a reward for near goals. And uniform replay behind its receiving thread while that stores
messages of 4 MiB as fast as it can: the 90th percentile of the time to wait and sample.

    python -m benchmarks.speed.replay [--rows N]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import quantiles
from typing import Any

import numpy as np
import torch

from asyncrl.actor.step_processor import OneStep
from asyncrl.core.env import BoxSpec, EnvSpec, PackedSpec
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import Experience, Message, Peer
from asyncrl.core.named import Named
from asyncrl.core.replay_buffer import ReplayBuffer
from asyncrl.core.segment import ColumnSpec, SegmentSchema, make_schema
from asyncrl.core.types import ActorId, Array, Columns, ModelVersion
from asyncrl.learner.config import RateLimiterConfig
from asyncrl.learner.rate_limiter import build_limiter
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.replay.hindsight import HindsightReplayConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.tools.bench.measure import Repeating
from asyncrl.tools.bench.stage_learner import filled
from benchmarks.common import (
    Comparison,
    Rounds,
    compare,
    in_turns,
    keep,
    make_parser,
    positive,
    provenance,
)

CASES = {
    "transitions": ColumnSpec("obs", "float32", (4,)),
    "frames": ColumnSpec("obs", "uint8", (84, 84)),
}
"""Name of a case -> its observations."""
LENGTH = 32
MESSAGE_BYTES = 4 << 20
PAUSE_S = 0.0005  # between two samples, as a learner also computes


def rows_schema(case: str, length: int) -> SegmentSchema:
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


def noise(schema: SegmentSchema, segments: int) -> Columns:
    """Return whole segments of noise without an episode's end."""
    random = np.random.default_rng(0)
    shape = segments, schema.rows
    columns = {
        c.name: random.integers(0, 9, (*shape, *c.shape), np.uint8).astype(c.dtype)
        for c in schema.columns
    }
    columns["flags"][:] = 0
    return columns


def full_replay(what: str, rows: int) -> tuple[ReplayBuffer, SegmentSchema]:
    """Return a uniform replay that is full, and the schema of its segments."""
    schema = rows_schema(what, LENGTH)
    config = UniformReplayConfig(capacity=rows)
    return filled(config, schema, noise(schema, max(1, rows // LENGTH))), schema


def microseconds(turn: Callable[[], object], seconds: float) -> Callable[[], float]:
    """Return a function that measures the mean time of one `turn`."""

    def once() -> int:
        turn()
        return 1

    work = Repeating(once, warm_up_seconds=seconds / 4)
    return lambda: 1e6 / work.rate(seconds)


def index_select(batch: Mapping[str, Array], rows: int, batch_size: int) -> Callable[[], object]:
    """Return a function that only selects the columns of such batches, from the same rows."""
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.from_numpy(np.resize(column, (rows, *column.shape[1:]))) for column in batch.values()
    ]
    drawn = itertools.cycle(torch.randint(rows, (512, batch_size), generator=generator).unbind())

    def turn() -> object:
        index = next(drawn)
        return [torch.index_select(tensor, 0, index) for tensor in tensors]

    return turn


def compare_uniform(what: str, rows: int, args: argparse.Namespace) -> Comparison:
    """Measure uniform replay beside bare selection."""
    size = args.batch_size
    replay, _ = full_replay(what, rows)
    select = index_select(replay.sample(size), rows, size)
    measures = {
        what: microseconds(lambda: replay.sample(size), args.seconds),
        "index_select": microseconds(select, args.seconds),
    }
    rounds = in_turns(measures, args.repeats)
    text = f"sample {size} of {rows:,} {what} / torch.index_select of as many bytes"
    return compare(rounds, what, "index_select", what=text, unit="us")


def is_near(achieved: Array, desired: Array, info: Mapping[str, Any]) -> Array:  # noqa: ARG001
    """Return -1 for each pair of goals that are more than 5 cm apart."""
    apart = achieved - desired
    reward: Array = -(np.einsum("ij,ij->i", apart, apart) > 0.05**2).astype(np.float32)
    return reward


def compare_hindsight(args: argparse.Namespace) -> Comparison:
    """Measure hindsight beside uniform replay of the same rows."""
    size = args.batch_size
    widths = {"achieved_goal": 3, "desired_goal": 3, "observation": 10}
    boxes = [
        (name, BoxSpec((n,), "float32", np.zeros(n), np.ones(n))) for name, n in widths.items()
    ]
    action = BoxSpec((4,), "float32", -np.ones(4), np.ones(4))
    spec = EnvSpec(PackedSpec(tuple(boxes)), action)
    config = HindsightReplayConfig(capacity=args.rows, compute_reward=Named(f"{__name__}:is_near"))
    columns = OneStep().columns(spec, ())
    schema = make_schema(columns, length=LENGTH, lookahead=config.lookahead)
    message = noise(schema, max(1, args.rows // LENGTH // 16))
    hindsight = filled(config.for_goals(spec, None), schema, message)
    uniform = filled(UniformReplayConfig(capacity=args.rows), schema, message)
    measures = {
        "hindsight": microseconds(lambda: hindsight.sample(size), args.seconds),
        "uniform": microseconds(lambda: uniform.sample(size), args.seconds),
    }
    rounds = in_turns(measures, args.repeats)
    text = f"sample {size} of {args.rows:,} transitions with hindsight / uniformly"
    return compare(rounds, "hindsight", "uniform", what=text, unit="us")


class Flood:
    """A learner's link on which a long message waits at every poll, until `dry`.

    It has no other end, so its other methods do nothing.
    """

    def __init__(self, schema: SegmentSchema) -> None:
        columns = noise(schema, MESSAGE_BYTES // schema.segment_bytes)
        rows = np.full(len(columns["flags"]), schema.rows)
        self.dry, self.counters = False, dict[str, int]()
        self._message = Experience(
            peer=Peer(actor_id=ActorId(0), incarnation=0),
            seq=1,
            columns=columns,
            rows=rows,
            transitions=len(rows) * LENGTH,
            produced=0,
            env_steps=0,
            model_version=ModelVersion(0),
        )

    def poll(self, timeout_s: float, waited: Callable[[], object] = lambda: None) -> list[Message]:
        """Return the same message again."""
        if not self.dry:
            return [self._message]
        time.sleep(timeout_s)  # a thread that spun would keep the interpreter's lock
        waited()
        return []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


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


def compare_pushing(what: str, rows: int, args: argparse.Namespace) -> Comparison:
    """Measure sampling time while experience arrives, and at rest."""
    interrupter = Interrupter()
    replay, schema = full_replay(what, rows)  # new memory is slower to write to
    link: Any = Flood(schema)
    limiter = build_limiter(
        RateLimiterConfig(samples_per_insert=0.0), max_insert=rows, batch_size=1
    )
    proxy = ReplayBufferProxy(link, replay, limiter, interrupter)
    proxy.start()
    rounds: Rounds = {"pushing": [], "at rest": []}
    for _ in range(args.repeats):
        for name, link.dry in (("pushing", False), ("at rest", True)):
            time.sleep(0.2)
            interrupter.raise_if_failed()
            rounds[name].append(latency_us(proxy, args.batch_size, args.seconds))
    proxy.close()
    interrupter.raise_if_failed()
    text = f"90 % of samples of {args.batch_size} {what} beside a pushing thread / at rest"
    return compare(rounds, "pushing", "at rest", what=text, unit="us")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__, repeats=3)
    parser.add_argument("--rows", type=positive, default=1_000_000, help="transitions in replay")
    parser.add_argument("--frames", type=positive, default=50_000, help="frames in replay")
    parser.add_argument("--batch-size", type=positive, default=256)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    return parser.parse_args(argv)


def main() -> None:
    """Measure, save, and print one JSON line."""
    args, origin = arguments(), provenance()
    torch.set_num_threads(1)
    sizes = {"transitions": args.rows, "frames": args.frames}
    comparisons = [compare_uniform(what, rows, args) for what, rows in sizes.items()]
    comparisons += [compare_pushing(what, rows, args) for what, rows in sizes.items()]
    comparisons += [compare_hindsight(args)]
    keep(args, "replay", __doc__, comparisons, origin=origin)


if __name__ == "__main__":
    main()
