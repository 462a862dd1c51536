"""How fast do actors fill the replay? Against the bare loop, and against Stable-Baselines3.

CartPole-v1 with a 64x64 policy in the loop. The bare loop runs on as many processes as there are
actors: the same policy and environments, columns written, and nothing else. Stable-Baselines3
collects PPO rollouts in one process. Each side has the arrangement that is its fastest on two
cores.

    python -m benchmarks.bench_sampling [--sweep]

Without a peer, and for other environments, `asyncrl bench sample` measures the same.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from asyncrl.benchmarking.load import Load
from asyncrl.benchmarking.sample import SampleStage
from asyncrl.benchmarking.workload import Workload
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

SWEEP = (8, 16, 32, 64, 128, 256)
SB3 = {"processes": False, "envs": 128}
UNIT = "env steps/s"


def measure(workload: Workload, repeats: int, peer: Path | None) -> Rounds:
    """Measure the bare loop, asyncrl and, if there is one, the peer, in turns."""
    stage = SampleStage(Load.of(workload))
    rounds: Rounds = {name: [] for name in ("bare loop", "asyncrl", *(["sb3"] if peer else []))}
    for i in range(repeats):
        rounds["bare loop"] += stage.measure_limit()
        rounds["asyncrl"] += stage.measure_value()
        if peer:
            settings = ["--settings", json.dumps(SB3)]
            printed = run_peer(peer, "sb3", ["sampling", "--seconds", workload.seconds, *settings])
            rounds["sb3"].append(printed["value"])
        last = {name: round(values[-1]) for name, values in rounds.items()}
        note(f"round {i + 1} of {repeats}, {workload.envs_per_actor} per actor: {last}")
    return rounds


def compared(rounds: Rounds, envs_per_actor: int, actors: int) -> list[Comparison]:
    """Compare asyncrl with all others of its rounds."""
    ours = f"{actors} actors of {envs_per_actor} CartPoles"
    sb3 = f"SB3 PPO rollouts, {SB3['envs']} envs"
    words = {"bare loop": f"bare loop on {actors} processes", "sb3": sb3}
    return [
        compare(rounds, "asyncrl", name, what=f"{ours} / {words[name]}", unit=UNIT)
        for name in rounds
        if name != "asyncrl"
    ]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--envs-per-actor", type=int, default=256)
    parser.add_argument("--segment-length", type=int, default=64)
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
        workload = Workload(
            env="CartPole-v1",
            actors=args.actors,
            envs_per_actor=envs,
            segment_length=args.segment_length,
            seconds=args.seconds,
        )
        rounds = measure(workload, args.repeats, peer)
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
