"""What do actor processes gain? Compares `asyncrl train` with the same settings in one process.

One process is `--mode sync`: the preset's numbers and all environments in one batch. Both are
compared in the time to a score and in steps a second. Solved is the first evaluation, of 10 greedy
episodes, at or above the score. All seconds count from the start of training, the start of actor
processes included and the import of packages not.

Seeds matter more than anything else here, and those of two sides have nothing in common: the ratio
of times is that of the medians over all seeds.

An interrupted benchmark continues where it stopped, unless anything it depends on has
changed since. Times beside other frameworks are those of `benchmarks.peers.compare`.

    python -m benchmarks.speed.race --task cartpole-dqn [-- TRAIN OPTIONS]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import (
    ASYNCRL,
    FIRST_SEED,
    Comparison,
    Rounds,
    compare,
    fingerprint,
    keep,
    make_parser,
    note,
    positive,
    provenance,
)

_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Arguments of all sides."""

    agent: str
    env: str
    score: float

    @property
    def words(self) -> str:
        """Return the title: algorithm and environment."""
        return f"{self.agent.upper()} on {self.env}"


TASKS = {
    "cartpole-dqn": Task(agent="dqn", env="CartPole-v1", score=475.0),
    "pendulum-sac": Task(agent="sac", env="Pendulum-v1", score=-200.0),
}

Run = dict[str, Any]
"""The record of one run: side, seed, seconds (None: not solved), and how it ended."""

_KEPT = ("env_steps", "opt_steps", "wall_s", "last_score", "stop_reason")


def train_ours(task: Task, seed: int, max_seconds: float, options: Sequence[str]) -> Run:
    """Train once with the command line, in a separate process."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        command = [*ASYNCRL, "train", task.agent]
        command += ["--env", task.env, "--stop-at-return", str(task.score), "--seed", str(seed)]
        command += ["--max-seconds", str(max_seconds), "--run-dir", str(run_dir), "--quiet"]
        done = subprocess.run(  # noqa: S603  # our own command line
            [*command, *options], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    return {"seconds": summary["seconds_to_stop_bar"]} | {name: summary[name] for name in _KEPT}


def load_runs(path: Path, identity: Mapping[str, object]) -> list[Run]:
    """Return the runs of an earlier call with the same identity; none if there was no such."""
    if not path.exists():
        return []
    details = json.loads(path.read_text(encoding="utf-8"))["details"]
    if details.get("identity") != identity:
        note(f"{path} was measured with something else; its runs do not count, starting over")
        return []
    runs: list[Run] = details["runs"]
    note(f"{path} holds {len(runs)} runs; continuing")
    return runs


def pair(runs: Sequence[Run], number: Callable[[Run], float]) -> Rounds:
    """Return a number of each side, ours first, for the seeds that both sides have done."""
    ours, theirs = (
        {run["seed"]: number(run) for run in runs if run["side"] == side}
        for side in ("asyncrl", "sync")
    )
    seeds = sorted(set(ours) & set(theirs))
    return {"asyncrl": [ours[s] for s in seeds], "sync": [theirs[s] for s in seeds]}


def compared(task: Task, runs: Sequence[Run]) -> list[Comparison]:
    """Compare the seeds that both sides have done."""

    def seconds(run: Run) -> float:
        return math.inf if run["seconds"] is None else float(run["seconds"])

    def rate(name: str) -> Callable[[Run], float]:
        return lambda run: float(run[name] / run["wall_s"])

    words = f"{task.words}, asynchronous / synchronous"
    wanted: list[tuple[Callable[[Run], float], str, str]] = [
        (seconds, f"{words}: to {task.score:g}", "s"),
        (rate("env_steps"), words, "env steps/s"),
        (rate("opt_steps"), words, "opt steps/s"),
    ]
    found = []
    for number, what, unit in wanted:
        rounds = pair(runs, number)
        if rounds["sync"]:
            paired = unit != "s"
            found.append(compare(rounds, "asyncrl", "sync", what=what, unit=unit, paired=paired))
    return found


def arguments() -> argparse.Namespace:
    """Read the command line; what stands behind `--` is for `asyncrl train`."""
    parser = make_parser(__doc__, repeats=0)
    parser.add_argument("--task", choices=sorted(TASKS), default="cartpole-dqn")
    parser.add_argument("--seeds", type=positive, default=10, help="how many, of both sides")
    parser.add_argument("--max-seconds", type=float, default=600.0, help="of one run")
    parser.add_argument("--fresh", action="store_true", help="forget an earlier result")
    parser.add_argument("options", nargs="*", help="for asyncrl train")
    return parser.parse_args()


def main() -> None:
    """Train what is still missing, seed by seed, and keep each run as soon as it is done."""
    args, origin = arguments(), provenance()
    task = TASKS[args.task]
    name = f"async_vs_sync_{args.task.replace('-', '_')}"
    identity = {
        "task": args.task,
        "max_seconds": args.max_seconds,
        "options": args.options,
        "code": fingerprint(),
        "machine": origin["machine"],
    }
    runs = [] if args.fresh else load_runs(args.results / f"{name}.json", identity)
    save = partial(keep, args, name, __doc__, origin=origin)
    details = {"identity": identity, "runs": runs}
    done = {(run["side"], run["seed"]) for run in runs}
    sides = {"asyncrl": args.options, "sync": [*args.options, "--mode", "sync"]}
    for seed in range(FIRST_SEED, FIRST_SEED + args.seeds):
        for side, options in sides.items():
            if (side, seed) not in done:
                load = os.getloadavg()[0]
                trained = train_ours(task, seed, args.max_seconds, options)
                runs.append({"side": side, "seed": seed, **trained, "load_before": load})
                note(f"seed {seed}: {side} {runs[-1]['seconds']} s")
                save(compared(task, runs), details=details, quiet=True)
    save(compared(task, runs), details=details)


if __name__ == "__main__":
    main()
