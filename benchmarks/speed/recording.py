"""How much slower is a run that records its order, and how large is the file?

    python -m benchmarks.speed.recording [--pairs 100] [--seconds 0.5] [--env CartPole-v1]

Within one run, recording is switched on and off in turns. Each pair gives a ratio of optimisation
steps per second, and one of the CPU time that the learner's process takes for a step, which depends
less on other programs. `order` leaves out the experience, `all` includes it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from asyncrl.core.messages import Experience
from asyncrl.extensions.order.recording import record_order
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.metrics.machine import machine
from asyncrl.run.presets import preset
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer

How = Literal["order", "all"]
_WARMUP_S = 2.0


class Slice(NamedTuple):
    """Counts of the learner over a short time."""

    opt_steps: int
    transitions: int
    wall_s: float
    cpu_s: float


class InTurns:
    """Trains as usual, with and without recording in turns."""

    def __init__(self, pairs: int, seconds: float) -> None:
        self._pairs, self._seconds = pairs, seconds
        self.on: list[Slice] = []
        self.off: list[Slice] = []

    def run(self, trainer: AsyncTrainer) -> None:
        """Warm up, then measure."""
        kept = trainer.proxy.observers
        trainer.proxy.observers = ()
        while not trainer.should_stop and not trainer.run_step():
            pass
        _train(trainer, _WARMUP_S)
        turns = [(kept, self.on), ((), self.off)]
        for _ in range(self._pairs):
            for observers, slices in turns:
                trainer.proxy.observers = observers
                slices.append(_train(trainer, self._seconds))
            turns.reverse()
        trainer.proxy.observers = kept
        trainer.interrupter.stop("measured")


def _train(trainer: AsyncTrainer, seconds: float) -> Slice:
    opt_steps, stored = trainer.opt_steps, trainer.proxy.ledger.balance().stored
    at_s, cpu_s = time.monotonic(), time.process_time()
    while not trainer.should_stop and time.monotonic() < at_s + seconds:
        trainer.run_step()
    return Slice(
        trainer.opt_steps - opt_steps,
        trainer.proxy.ledger.balance().stored - stored,
        time.monotonic() - at_s,
        time.process_time() - cpu_s,
    )


def measure(config: RunConfig, how: How, turns: InTurns) -> None:
    """Run once, and print the cost of recording."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "order"
        make_env = config.env_config().build
        trainer = build_trainer(
            config, env=make_env, strategy=turns, observers=[record_order(path)], recorder=None
        )
        assert isinstance(trainer, AsyncTrainer)
        if how == "order":
            trainer.proxy.observers[0].message = _drop  # type: ignore[method-assign]
        trainer.train()
        size = path.stat().st_size
    opt_steps = sum(one.opt_steps for one in turns.on)
    transitions = sum(one.transitions for one in turns.on)
    print(
        f"{how}: {size / opt_steps:.1f} bytes per optimisation step, "
        f"{size / transitions:.2f} per transition"
    )
    pairs = [pair for pair in zip(turns.on, turns.off, strict=True) if all(p[0] for p in pair)]
    _show("speed", [_speed(on) / _speed(off) for on, off in pairs])
    _show("CPU time", [_cpu_s(on) / _cpu_s(off) for on, off in pairs])
    print(
        f"  {statistics.median(map(_speed, turns.off)):.0f} optimisation steps per second without"
    )


def _drop(message: Experience) -> None:
    """Discard the experience."""


def _speed(one: Slice) -> float:
    return one.opt_steps / one.wall_s


def _cpu_s(one: Slice) -> float:
    return one.cpu_s / one.opt_steps


def _show(what: str, ratios: Sequence[float]) -> None:
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"  {what}: {middle:.3f} (quartiles {low:.3f} to {high:.3f}, n = {len(ratios)})")


def main() -> None:
    """Measure both ways of recording."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--agent", default="dqn")
    parser.add_argument("--env", default="CartPole-v1")
    given = parser.parse_args()
    config = replace(
        preset(given.agent), env=given.env, evaluate=EvaluationConfig(where="off"), actors=2
    )
    print(machine()["processor"])
    for how in get_args(How):
        measure(config, how, InTurns(given.pairs, given.seconds))


if __name__ == "__main__":
    main()
