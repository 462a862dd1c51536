"""How fast do actors fill the replay? Against the bare loop, and against Stable-Baselines3.

A 64x64 policy is in the loop. The bare loop runs on as many processes as there are actors: the same
policy and environments, columns written, and nothing else. On plain CartPoles, Stable-Baselines3
collects PPO rollouts in one process. Each side has the arrangement that is its fastest on two
cores.

    python -m benchmarks.speed.sampling [--cases CASE ...]
    python -m benchmarks.speed.sampling --sweep

For other environments, `asyncrl bench sample` measures the same.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from asyncrl.bench.load import Load
from asyncrl.bench.stage_runs import sample_stage
from asyncrl.bench.workload import Workload
from benchmarks.common import (
    PEER_VENV,
    Comparison,
    Rounds,
    compare,
    keep,
    make_parser,
    note,
    peer_python,
    positive,
    provenance,
    run_peer,
)

SB3 = {"processes": False, "envs": 128}
UNIT = "env steps/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Environments, in the arrangement that is fastest for actors here."""

    name: str
    """Name of the environments, in the plural."""

    workload: Workload
    needs: str = "gymnasium"
    """Package that provides them."""

    peer: bool = False
    """Whether Stable-Baselines3 is measured, too."""


CASES: Mapping[str, Case] = {
    "cartpole": Case(
        name="CartPoles", workload=Workload(envs_per_actor=256, segment_length=64), peer=True
    ),
    "native": Case(
        name="native CartPoles",
        workload=Workload(vectorization="native", envs_per_actor=2048, segment_length=32),
    ),
    "halfcheetah": Case(
        name="HalfCheetahs",
        workload=Workload(env="HalfCheetah-v5", envs_per_actor=64, segment_length=64),
        needs="mujoco",
    ),
    # The replay is full before the measurement begins: to touch new memory, 36 MB in a second, is
    # slow on a virtual machine, and over once a replay is full.
    "pong": Case(
        name="Pongs",
        workload=Workload(
            env="ALE/Pong-v5",
            envs_per_actor=16,
            segment_length=64,
            frame_stack=4,
            capacity=10_000,
            warm_up_seconds=3.0,
        ),
        needs="ale_py",
    ),
}

SWEEP = (8, 16, 32, 64, 128, 256)


def measure(case: Case, repeats: int, peer: Path | None) -> Rounds:
    """Measure the bare loop, asyncrl and, if there is one, the peer, in turns."""
    workload = case.workload
    stage = sample_stage(Load.of(workload))
    rounds: Rounds = {name: [] for name in ("bare loop", "asyncrl", *(["sb3"] if peer else []))}
    for i in range(repeats):
        rounds["bare loop"] += stage.limit()
        rounds["asyncrl"] += stage.value()
        if peer:
            settings = ["--settings", json.dumps(SB3)]
            printed = run_peer(peer, "sb3", ["sampling", "--seconds", workload.seconds, *settings])
            rounds["sb3"].append(printed["value"])
        last = {name: round(values[-1]) for name, values in rounds.items()}
        note(f"round {i + 1} of {repeats}, {words_of(case)}: {last}")
    return rounds


def words_of(case: Case) -> str:
    """Return the title: actors, environments each, and their name."""
    return f"{case.workload.actors} actors of {case.workload.envs_per_actor} {case.name}"


def compared(case: Case, rounds: Rounds) -> list[Comparison]:
    """Compare asyncrl with the others measured in the same rounds."""
    sb3 = f"SB3 PPO rollouts, {SB3['envs']} envs"
    others = {"bare loop": f"bare loop on {case.workload.actors} processes", "sb3": sb3}
    return [
        compare(rounds, "asyncrl", name, what=f"{words_of(case)} / {others[name]}", unit=UNIT)
        for name in rounds
        if name != "asyncrl"
    ]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__, repeats=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--envs-per-actor", type=positive, help="in place of each case's own")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--sweep", action="store_true", help=f"CartPoles per actor: {SWEEP}")
    parser.add_argument("--venv", type=Path, default=PEER_VENV, help="of the peers")
    return parser.parse_args(argv)


def asked_for(args: argparse.Namespace) -> Iterator[tuple[str, list[Case]]]:
    """Yield each result of a command line that can be measured here, by name."""
    for name in ["cartpole"] if args.sweep else args.cases:
        case = CASES[name]
        if importlib.util.find_spec(case.needs) is None:
            note(f"skipped: {case.name} need the package {case.needs}")
            continue
        cases = []
        for number in SWEEP if args.sweep else [args.envs_per_actor]:
            envs = number or case.workload.envs_per_actor
            workload = replace(case.workload, seconds=args.seconds, envs_per_actor=envs)
            cases.append(replace(case, workload=workload, peer=case.peer and not args.sweep))
        yield "sweep" if args.sweep else name, cases


def main() -> None:
    """Measure each case, or one with several numbers of environments."""
    args = arguments()
    for name, cases in asked_for(args):
        origin = provenance()
        comparisons: list[Comparison] = []
        details: dict[str, Rounds] = {}
        for case in cases:
            rounds = measure(case, args.repeats, peer_python(args.venv) if case.peer else None)
            comparisons += compared(case, rounds)
            details[words_of(case)] = rounds
        keep(args, f"sampling_{name}", __doc__, comparisons, origin=origin, details=details)


if __name__ == "__main__":
    main()
