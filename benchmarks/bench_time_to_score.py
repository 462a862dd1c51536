"""How long until the task is solved? `asyncrl train` against Stable-Baselines3, seed by seed.

Solved is the first evaluation, of 10 greedy episodes, at or above the score. Both sides' seconds
count from the start of training, the start of actor processes included and the import of packages
not. Stable-Baselines3 trains with the tuned settings of its zoo and stops for its evaluations, so
it is compared with and without their time.

Seeds matter more than anything else here, and those of the two sides have nothing in common: the
ratio is that of the medians over all seeds.

A result that was interrupted is gone on with where it stopped, unless anything it depends on has
changed since.

    python -m benchmarks.bench_time_to_score --task cartpole-dqn [-- TRAIN OPTIONS]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import (
    ASYNCRL,
    PEER_VENV,
    Comparison,
    Rounds,
    compare,
    fingerprint,
    make_parser,
    note,
    peer_python,
    positive,
    provenance,
    run_peer,
    save,
    show,
)

_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What both sides are given."""

    agent: str
    env: str
    score: float
    stage: str
    """Of the peer's script."""


TASKS = {
    "cartpole-dqn": Task(agent="dqn", env="CartPole-v1", score=475.0, stage="score-dqn"),
    "pendulum-sac": Task(agent="sac", env="Pendulum-v1", score=-200.0, stage="score-sac"),
}

Run = dict[str, Any]
"""What is kept of one training: side, seed, seconds (None: not solved), and how it ended."""


def train_ours(task: Task, seed: int, max_seconds: float, options: Sequence[str]) -> Run:
    """Train once with the command line, in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        command = [*ASYNCRL, "train", task.agent]
        command += ["--env", task.env, "--stop-at-return", str(task.score), "--seed", str(seed)]
        command += ["--max-seconds", str(max_seconds), "--run-dir", str(run_dir), "--quiet"]
        began = time.monotonic()
        done = subprocess.run(  # noqa: S603  # our own command line
            [*command, *options], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        wall_s = time.monotonic() - began
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    kept = ("env_steps", "opt_steps", "last_score", "stop_reason")
    return {"seconds": summary["seconds_to_stop_bar"], "process_s": wall_s} | {
        name: summary[name] for name in kept
    }


def train_peer(python: Path, task: Task, seed: int, max_seconds: float) -> Run:
    """Train once with the peer's script."""
    arguments = [task.stage, "--seed", seed, "--seconds", max_seconds]
    printed = run_peer(python, "sb3", arguments)
    details = printed["details"]
    return {
        "seconds": details["seconds_with_evaluations"],
        "seconds_without_evaluation": printed["value"],
        "env_steps": details["env_steps"],
        "scores": details["scores"],
        "threads": printed["settings"]["threads"],
    }


def load_runs(path: Path, identity: Mapping[str, object]) -> list[Run]:
    """Return the runs of an earlier call with the same identity; none if there was no such."""
    if not path.exists():
        return []
    details = json.loads(path.read_text(encoding="utf-8"))["details"]
    if details["identity"] != identity:
        note(f"{path} was measured with something else; its runs do not count, starting anew")
        return []
    runs: list[Run] = details["runs"]
    note(f"{path} holds {len(runs)} runs; going on")
    return runs


def compared(task: Task, runs: Sequence[Run]) -> list[Comparison]:
    """Compare the seeds that both sides have done."""

    def seconds(side: str, name: str) -> dict[int, float]:
        found = {run["seed"]: run[name] for run in runs if run["side"] == side}
        return {seed: math.inf if value is None else value for seed, value in found.items()}

    ours = seconds("asyncrl", "seconds")
    comparisons = []
    for name, words in {
        "seconds": "SB3",
        "seconds_without_evaluation": "SB3 without its evaluations",
    }.items():
        other = seconds("sb3", name)
        seeds = sorted(set(ours) & set(other))
        if not seeds:
            continue
        rounds: Rounds = {"asyncrl": [ours[s] for s in seeds], "sb3": [other[s] for s in seeds]}
        what = f"{task.agent.upper()} on {task.env} to {task.score:g}: asyncrl / {words}"
        comparisons.append(compare(rounds, "asyncrl", "sb3", what=what, unit="s", paired=False))
    return comparisons


def arguments() -> argparse.Namespace:
    """Read the command line; what stands behind `--` is for `asyncrl train`."""
    parser = make_parser(__doc__, repeats=0)
    parser.add_argument("--task", choices=sorted(TASKS), default="cartpole-dqn")
    parser.add_argument("--seeds", type=positive, default=10, help="0, 1, ... of both sides")
    parser.add_argument("--max-seconds", type=float, default=600.0, help="of one run")
    parser.add_argument("--fresh", action="store_true", help="forget an earlier result")
    parser.add_argument("--venv", type=Path, default=PEER_VENV, help="of the peer")
    parser.add_argument("options", nargs="*", help="for asyncrl train")
    return parser.parse_args()


def main() -> None:
    """Train what is still missing, seed by seed, and keep each run as soon as it is done."""
    args = arguments()
    task = TASKS[args.task]
    origin = provenance()
    name = f"time_to_score_{args.task.replace('-', '_')}"
    identity = {
        "task": args.task,
        "max_seconds": args.max_seconds,
        "options": args.options,
        "code": fingerprint(),
        "machine": origin["machine"],
    }
    path = args.results / f"{name}.json"
    runs = [] if args.fresh else load_runs(path, identity)
    sides: dict[str, Callable[[int], Run]] = {
        "asyncrl": lambda seed: train_ours(task, seed, args.max_seconds, args.options)
    }
    if python := peer_python(args.venv):
        sides["sb3"] = lambda seed: train_peer(python, task, seed, args.max_seconds)
    done = {(run["side"], run["seed"]) for run in runs}
    for seed in range(args.seeds):
        for side, train in sides.items():
            if (side, seed) in done:
                continue
            load = os.getloadavg()[0]
            run = {"side": side, "seed": seed, **train(seed), "load_before": load}
            note(f"seed {seed}: {side} {run['seconds']} s")
            runs.append(run)
            save(
                args.results,
                name,
                question=__doc__,
                settings={"seeds": args.seeds, "options": args.options},
                comparisons=compared(task, runs),
                origin=origin,
                details={"identity": identity, "runs": runs},
            )
    show(path)


if __name__ == "__main__":
    main()
