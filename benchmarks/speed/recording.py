"""How much slower is a run that records its order, and how large is the file?

    python -m benchmarks.speed.recording [--turns 5] [--seconds 8] [--env CartPole-v1] [--agent dqn]

Runs alternate between no recording, the order alone, and the order with its experience. Ratios are
those within a turn: of optimisation steps per second, and of the CPU time that the learner's
process takes for one, which depends less on other programs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from asyncrl.core.messages import Experience
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.metrics.machine import machine
from asyncrl.training.asynchronous import build_async_trainer
from asyncrl.training.common_config import EvaluationConfig
from asyncrl.training.presets import preset
from asyncrl.training.run_config import RunConfig

How = Literal["off", "order", "all"]
_WARMUP_S = 1.5


class Watch:
    """Trains as usual, and counts for a while once the learner learns."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.opt_steps_per_s = self.env_steps_per_s = self.cpu_us_per_opt_step = 0.0

    def run(self, trainer: AsyncTrainer) -> None:
        """Warm up, then measure."""
        while not trainer.should_stop and not trainer.run_step():
            pass
        self._turn(trainer, _WARMUP_S)
        opt_steps, env_steps = trainer.opt_steps, trainer.env_steps
        at, cpu_s = time.monotonic(), time.process_time()
        self._turn(trainer, self._seconds)
        took_s, cpu_s = time.monotonic() - at, time.process_time() - cpu_s
        opt_steps = trainer.opt_steps - opt_steps
        self.opt_steps_per_s = opt_steps / took_s
        self.cpu_us_per_opt_step = cpu_s / opt_steps * 1e6
        self.env_steps_per_s = (trainer.env_steps - env_steps) / took_s
        trainer.interrupter.stop("measured")

    @staticmethod
    def _turn(trainer: AsyncTrainer, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not trainer.should_stop and time.monotonic() < until:
            trainer.run_step()


def _drop(message: Experience) -> None:
    """Keep nothing of the experience."""


def measured(config: RunConfig, how: How, seconds: float) -> dict[str, float]:
    """Run once; return rates and the size of the file."""
    watch = Watch(seconds)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "order"
        trainer = build_async_trainer(
            config.agent,
            config.env_config().build,
            config,
            strategy=watch,
            record_order=None if how == "off" else path,
        )
        if how == "order":
            trainer.proxy.order.message = _drop  # type: ignore[method-assign]
        result = trainer.train()
        size = path.stat().st_size if path.exists() else 0
    return {
        "opt_steps_per_s": watch.opt_steps_per_s,
        "cpu_us_per_opt_step": watch.cpu_us_per_opt_step,
        "env_steps_per_s": watch.env_steps_per_s,
        "bytes_per_opt_step": size / result.opt_steps,
        "bytes_per_transition": size / result.ledger["stored"],
    }


def main() -> None:
    """Measure in turns and print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--agent", default="dqn")
    parser.add_argument("--env", default="CartPole-v1")
    given = parser.parse_args()
    config = replace(
        preset(given.agent), env=given.env, evaluate=EvaluationConfig(where="off"), actors=2
    )
    rows: dict[How, list[dict[str, float]]] = {how: [] for how in get_args(How)}
    for turn in range(given.turns):
        order = get_args(How) if turn % 2 == 0 else get_args(How)[::-1]
        for how in order:
            rows[how].append(measured(config, how, given.seconds))
            print(how, json.dumps(rows[how][-1]), flush=True)
    print(machine()["processor"], f"n = {given.turns}")
    for how, found in rows.items():
        medians = {name: statistics.median(row[name] for row in found) for name in found[0]}
        print(how, {name: round(value, 1) for name, value in medians.items()})
        for name in ("opt_steps_per_s", "cpu_us_per_opt_step"):
            pairs = zip(found, rows["off"], strict=True)
            ratios = sorted(row[name] / off[name] for row, off in pairs)
            print(
                f"  {name}: {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
            )


if __name__ == "__main__":
    main()
