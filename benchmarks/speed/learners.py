"""What an optimisation step costs with several learners, without actors and replay.

    python -m benchmarks.speed.learners --hidden 64 64 --batch-size 128 --learners 1 2 --gloo

Each learner is a process with one thread and its part of the batch; SAC on random transitions of
HalfCheetah's size. Prints the median step and the transitions learned a second, with `--gloo` also
for learners that sum as those on several machines do. A round of all settings is repeated, since
other programs disturb some rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import PolicyContext, build_agent
from asyncrl.core.env import BoxSpec, EnvSpec
from asyncrl.core.ranks import join
from asyncrl.learner.distributed import joined
from asyncrl.learner.lockstep import STORE_FILE, RanksConfig, place_in

_WARM_UP = 10
_SUMS = ("memory", "gloo")
_COUNTERS = [0.0] * 15
"""What ranks exchange before each step of a run."""


def main() -> None:
    """Measure all settings in turns, or one of them as one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--batch-size", type=int, nargs="+", default=[128])
    parser.add_argument("--learners", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--gloo", action="store_true")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if STORE_FILE in os.environ:
        print(_median_step_s(given.hidden, given.batch_size[0], given.seconds), flush=True)
        return
    ways = [(world, sums) for world in given.learners for sums in _SUMS]
    ways = [(w, sums) for w, sums in ways if sums == _SUMS[0] or (given.gloo and w > 1)]
    for batch_size in given.batch_size:
        steps_s: dict[tuple[int, str], list[float]] = {way: [] for way in ways}
        for _ in range(given.rounds):
            for way in ways:
                steps_s[way].append(_measured(*way, given.hidden, batch_size, given.seconds))
        for (world, sums), found in steps_s.items():
            step_s = statistics.median(found)
            print(
                f"hidden {given.hidden}, whole batch {batch_size}, {world} learners, {sums}: "
                f"median {1e3 * step_s:.2f} ms (of rounds {1e3 * min(found):.2f} to "
                f"{1e3 * max(found):.2f}), {batch_size / step_s:.0f} transitions/s",
                flush=True,
            )


def _measured(world: int, sums: str, hidden: list[int], batch_size: int, seconds: float) -> float:
    """Run all ranks of one setting; return the median step of rank 0 in seconds."""
    settings = ["--hidden", *map(str, hidden), "--batch-size", str(batch_size // world)]
    with tempfile.TemporaryDirectory() as private:
        ranks = []
        for rank in range(world):
            local = world if sums == _SUMS[0] else 1  # each as if on its own machine
            place = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(local)}
            place["GLOO_SOCKET_IFNAME"] = "lo"
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
    ones, wide = np.ones(6, np.float32), np.full(17, np.inf, np.float32)
    spec = EnvSpec(BoxSpec((17,), "float32", -wide, wide), BoxSpec((6,), "float32", -ones, ones))
    agent = build_agent(SACConfig(hidden=tuple(hidden)), spec, PolicyContext(seed=0))
    place = place_in(os.environ)
    group = None if place is None else joined(place, RanksConfig(several_machines=True))
    if group is not None:
        join(agent, group)
    draw = np.random.default_rng(0 if place is None else place.rank)
    batch = {
        "obs": draw.normal(size=(batch_size, 17)).astype(np.float32),
        "next_obs": draw.normal(size=(batch_size, 17)).astype(np.float32),
        "action": draw.uniform(-1, 1, size=(batch_size, 6)).astype(np.float32),
        "reward": draw.normal(size=batch_size).astype(np.float32),
        "discount": np.full(batch_size, 0.99, np.float32),
    }
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
