"""How fast do actors fill the replay, compared with the bare loop?

A 64x64 policy is in the loop. The bare loop runs on as many processes as there are actors: the same
policy and environments, columns written, and nothing else. Each case has the arrangement that is
the fastest on two cores. `benchmarks.peers.compare` measures other frameworks.

    python -m benchmarks.speed.sampling [--cases CASE ...]

For other environments, `asyncrl bench sample` measures the same.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from asyncrl.tools.bench.load import Load
from asyncrl.tools.bench.stage_runs import sample_stage
from asyncrl.tools.bench.workload import Workload
from benchmarks.common import Rounds, compare, keep, make_parser, note, positive, provenance

UNIT = "env steps/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Environments, in the arrangement that is fastest for actors here."""

    name: str
    """Name of the environments, in the plural."""

    workload: Workload
    needs: str = "gymnasium"
    """Package that provides them."""


CASES: Mapping[str, Case] = {
    "cartpole": Case(name="CartPoles", workload=Workload(envs_per_actor=256, segment_length=64)),
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


def measure(case: Case, repeats: int) -> Rounds:
    """Measure the bare loop and asyncrl in turns."""
    stage = sample_stage(Load.of(case.workload))
    rounds: Rounds = {"bare loop": [], "asyncrl": []}
    for i in range(repeats):
        rounds["bare loop"] += stage.limit()
        rounds["asyncrl"] += stage.value()
        last = {name: round(values[-1]) for name, values in rounds.items()}
        note(f"round {i + 1} of {repeats}, {words_of(case)}: {last}")
    return rounds


def words_of(case: Case) -> str:
    """Return the title: actors, environments each, and their name."""
    return f"{case.workload.actors} actors of {case.workload.envs_per_actor} {case.name}"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__, repeats=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--envs-per-actor", type=positive, help="in place of each case's own")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure each case whose environments are installed."""
    args = arguments(argv)
    for name in args.cases:
        case = CASES[name]
        if importlib.util.find_spec(case.needs) is None:
            note(f"skipped: {case.name} need the package {case.needs}")
            continue
        origin, envs = provenance(), args.envs_per_actor or case.workload.envs_per_actor
        workload = replace(case.workload, seconds=args.seconds, envs_per_actor=envs)
        case = replace(case, workload=workload)
        rounds = measure(case, args.repeats)
        what = f"{words_of(case)} / bare loop on {workload.actors} processes"
        found = [compare(rounds, "asyncrl", "bare loop", what=what, unit=UNIT)]
        details = {words_of(case): rounds}
        keep(args, f"sampling_{name}", __doc__, found, origin=origin, details=details)


if __name__ == "__main__":
    main()
