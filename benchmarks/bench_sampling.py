"""How fast do actors fill the replay? Against the bare loop, and against Stable-Baselines3.

CartPole-v1 with a 64x64 policy in the loop. The bare loop runs on as many processes as there are
actors: the same policy and environments, columns written, and nothing else. Stable-Baselines3
collects PPO rollouts from 64 environments in one process, its fastest arrangement for these.

    python -m benchmarks.bench_sampling [--sweep]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from asyncrl.agents.dqn import DQNConfig
from asyncrl.async_config import AsyncConfig, EvaluationConfig
from asyncrl.benchmarking import SampleBenchmark
from asyncrl.envs.gym import EnvConfig
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.segment import SegmentConfig
from benchmarks.common import (
    PEER_VENV,
    Comparison,
    Rounds,
    compare,
    make_parser,
    note,
    peer_python,
    provenance,
    run_peer,
    save,
    show,
)

__all__ = ["SWEEP", "measure"]

SWEEP = (8, 16, 32, 64, 128)
UNIT = "env steps/s"


def measure(bench: SampleBenchmark, repeats: int, peer: Path | None) -> Rounds:
    """Measure the bare loop, asyncrl and, if there is one, the peer, in turns."""
    rounds: Rounds = {name: [] for name in ("bare loop", "asyncrl", *(["sb3"] if peer else []))}
    for i in range(repeats):
        result = bench.run()
        rounds["bare loop"].append(result.limit_env_steps_per_s)
        rounds["asyncrl"].append(result.env_steps_per_s)
        if peer:
            printed = run_peer(peer, "sb3_sampling", ["--seconds", bench.seconds])
            rounds["sb3"].append(printed["env_steps_per_s"])
        last = {name: round(values[-1]) for name, values in rounds.items()}
        note(f"round {i + 1} of {repeats}, {bench.envs_per_actor} environments per actor: {last}")
    return rounds


def make_bench(args: argparse.Namespace, envs_per_actor: int) -> SampleBenchmark:
    """Return a benchmark that measures once."""
    envs = EnvConfig(id="CartPole-v1", n_envs=envs_per_actor)
    return SampleBenchmark(
        env=envs.id,
        make_plain=envs.make_plain,
        make_batch=envs.build,
        agent=DQNConfig(hidden=(64, 64)),
        config=AsyncConfig(
            actors=args.actors,
            segment=SegmentConfig(length=args.segment_length),
            limiter=RateLimiterConfig(samples_per_insert=0.0),
            evaluation=EvaluationConfig(where="off"),
        ),
        envs_per_actor=envs_per_actor,
        seconds=args.seconds,
        repeats=1,
    )


def compared(rounds: Rounds, envs_per_actor: int, actors: int) -> list[Comparison]:
    """Compare asyncrl with all others of its rounds."""
    ours = f"{actors} actors of {envs_per_actor} CartPoles"
    words = {"bare loop": f"bare loop on {actors} processes", "sb3": "SB3 PPO rollouts, 64 envs"}
    return [
        compare(rounds, "asyncrl", name, what=f"{ours} / {words[name]}", unit=UNIT)
        for name in rounds
        if name != "asyncrl"
    ]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--envs-per-actor", type=int, default=64)
    parser.add_argument("--segment-length", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--sweep", action="store_true", help=f"environments per actor: {SWEEP}")
    parser.add_argument("--venv", type=Path, default=PEER_VENV, help="of the peers")
    return parser.parse_args(argv)


def main() -> None:
    """Measure once, or once for each number of environments."""
    args = arguments()
    origin = provenance()
    peer = None if args.sweep else peer_python(args.venv)
    comparisons: list[Comparison] = []
    details: dict[str, Rounds] = {}
    for envs in SWEEP if args.sweep else (args.envs_per_actor,):
        rounds = measure(make_bench(args, envs), args.repeats, peer)
        comparisons += compared(rounds, envs, args.actors)
        details[f"{envs} environments per actor"] = rounds
    path = save(
        args.results,
        "sampling_sweep" if args.sweep else "sampling",
        question=__doc__,
        settings={
            "actors": args.actors,
            "segment_length": args.segment_length,
            "seconds": args.seconds,
            "repeats": args.repeats,
        },
        comparisons=comparisons,
        origin=origin,
        details=details,
    )
    show(path)


if __name__ == "__main__":
    main()
