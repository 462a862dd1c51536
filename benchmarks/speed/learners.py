"""What does an optimisation step cost with several learners, without actors and replay?

    python -m benchmarks.speed.learners --hidden 64 64 --batch-size 128 --learners 1 2 --gloo

Each learner is a process with one thread and its part of the batch; SAC on random transitions of
HalfCheetah's size. Measures the median step, also of learners that do not sum, each with its part
of the batch, and with `--gloo` of those that sum as on several machines. All ways are measured in
turns, since other programs disturb some rounds. Each size of networks and batch is a file of
results; `--table` writes them into the guide.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import PolicyContext, build_agent
from asyncrl.core.ranks import RanksConfig, join, place_in
from asyncrl.extensions.ranks.distributed import joined
from asyncrl.extensions.ranks.lockstep import STORE_FILE
from asyncrl.tools.bench.result import title
from benchmarks.common import ROOT, compare, in_turns, keep, make_parser, provenance, publish
from benchmarks.peers.interface import make_rows
from benchmarks.speed.learner import CASES

GUIDE = ROOT / "docs" / "guides" / "several-learners.md"
MARKS = "<!-- steps: written by benchmarks/speed/learners.py -->", "<!-- end of steps -->"

_WARM_UP = 3
_ALONE = "1 learner"
_MEMORY, _GLOO, _APART = _SUMS = ("", " by gloo", " without sums")

_COUNTERS = [0.0] * 15
"""What ranks exchange before each step of a run."""


def main() -> None:
    """Measure all ways in turns, or one of them as one rank."""
    parser = make_parser(__doc__, repeats=5)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--batch-size", type=int, nargs="+", default=[128])
    parser.add_argument("--learners", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--gloo", action="store_true")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--table", action="store_true", help="write the results into the guide")
    given = parser.parse_args()
    given.results /= "learners"
    if STORE_FILE in os.environ:
        print(_median_step_s(given.hidden, given.batch_size[0], given.seconds), flush=True)
        return
    if given.table:
        publish(GUIDE, render(given.results), MARKS)
        return
    ways = [(world, sums) for world in given.learners for sums in _SUMS]
    measured = _SUMS if given.gloo else (_MEMORY, _APART)
    ways = [(w, sums) for w, sums in ways if sums in (measured if w > 1 else [_MEMORY])]
    for batch_size in given.batch_size:
        _measure(given, batch_size, ways)


def _measure(given: argparse.Namespace, batch_size: int, ways: Sequence[tuple[int, str]]) -> None:
    """Measure all ways of one size, and keep the result."""
    origin = provenance()
    measures = {
        _name(*way): partial(_measured, *way, given.hidden, batch_size, given.seconds)
        for way in ways
    }
    rounds = in_turns(measures, given.repeats)
    size = "x".join(map(str, given.hidden))
    keep(
        argparse.Namespace(**{**vars(given), "batch_size": batch_size}),
        f"{size}_{batch_size}",
        __doc__,
        [
            compare(rounds, _ALONE, name, what=f"{_ALONE} / {name}, step of {size}", unit="s")
            for name in rounds
            if name != _ALONE and _ALONE in rounds
        ],
        origin=origin,
        details={"steps_s": rounds},
    )


def _name(world: int, sums: str) -> str:
    return f"{world} learner{'s' * (world > 1)}{sums}"


def render(results: Path) -> str:
    """Return the table of all kept results, and where they were measured."""
    names = [_ALONE, *(_name(2, sums) for sums in _SUMS)]
    lines = [
        "",
        f"| hidden layers; whole batch | {' | '.join(names)} | transitions/s, 2 learners / 1 | "
        "load before |",
        f"| --- {'| --- ' * (len(names) + 2)}|",
    ]
    kept = [json.loads(path.read_text("utf-8")) for path in results.glob("*.json")]
    kept.sort(key=lambda one: (one["settings"]["hidden"], one["settings"]["batch_size"]))
    for one in kept:
        steps = one["details"]["steps_s"]
        ratio = statistics.median(
            a / b for a, b in zip(steps[_ALONE], steps[names[1]], strict=True)
        )
        hidden = ", ".join(map(str, one["settings"]["hidden"]))
        cells = [_cell(steps.get(name)) for name in names]
        cells = [f"{hidden}; {one['settings']['batch_size']:,}", *cells, f"{ratio:.2f}"]
        lines.append(f"| {' | '.join(cells)} | {one['load_before']:.1f} |")
    where = sorted({f"{title(one['machine'])}. Commit {one['commit']}." for one in kept})
    return "\n".join([*lines, "", *where, ""])


def _cell(steps_s: Sequence[float] | None) -> str:
    if not steps_s:
        return ""
    least, middle, most = (1e3 * f(steps_s) for f in (min, statistics.median, max))
    return f"{middle:.1f} ms ({least:.1f} to {most:.1f})"


def _measured(world: int, sums: str, hidden: list[int], batch_size: int, seconds: float) -> float:
    """Run all ranks of one setting; return the median step of rank 0 in seconds."""
    settings = ["--hidden", *map(str, hidden), "--batch-size", str(batch_size // world)]
    with tempfile.TemporaryDirectory() as private:
        ranks = []
        for rank in range(world):
            local = 1 if sums == _GLOO else world  # each as if on its own machine
            place = {"RANK": str(rank), "WORLD_SIZE": str(1 if sums == _APART else world)}
            place |= {"LOCAL_WORLD_SIZE": str(local), "GLOO_SOCKET_IFNAME": "lo"}
            store = {STORE_FILE: str(Path(private) / "store"), "OMP_NUM_THREADS": "1"}
            ranks.append(
                subprocess.Popen(  # noqa: S603  # this program again
                    [sys.executable, "-m", __spec__.name, *settings, "--seconds", str(seconds)],
                    env={**os.environ, **place, **store},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        said, *_ = [rank.communicate()[0] for rank in ranks]
        return float(said)


def _median_step_s(hidden: list[int], batch_size: int, seconds: float) -> float:
    torch.set_num_threads(1)
    case = CASES["sac"]
    agent = build_agent(SACConfig(hidden=tuple(hidden)), case.spec, PolicyContext(seed=0))
    place = place_in(os.environ)
    group = None if place is None else joined(place, RanksConfig(several_machines=True))
    if group is not None:
        join(agent, group)
    batch = make_rows(case.sizes, batch_size, discrete=False)
    batch["discount"] = np.full(batch_size, 0.99, np.float32)
    took_s: list[float] = []
    until, goes = float("inf"), True
    while goes:
        began = time.perf_counter()
        goes = time.monotonic() < until
        if group is not None:  # as before each step of a run
            goes = group.exchange([float(goes), *_COUNTERS])[0] == group.world
        agent.opt(batch)
        took_s.append(time.perf_counter() - began)
        if len(took_s) == _WARM_UP:
            until = time.monotonic() + seconds
    if group is not None:
        group.leave()
    return statistics.median(took_s[_WARM_UP:])


if __name__ == "__main__":
    main()
