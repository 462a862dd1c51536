"""Do slow environments cost nothing but actors? 64 that sleep 10 ms a step, on two cores.

One actor of one environment is measured, and as many as asked for, in turns; the ratio is what
they reach of that many times the one. An environment that sleeps stands for one that waits: for a
robot, a browser, another machine.

    python -m benchmarks.bench_slow_envs --actors 64
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from asyncrl.agents.dqn import DQNConfig
from asyncrl.envs.gym import make_batch
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.training.asynchronous import build_async_trainer
from asyncrl.training.config import AsyncConfig, EvaluationConfig
from benchmarks.common import (
    compare,
    in_turns,
    make_parser,
    positive,
    provenance,
    save,
    settings_of,
    show,
)

_START_DEADLINE_S = 120.0


class Sleeper(gymnasium.Env[np.ndarray, np.int64]):
    """An environment that takes its time, and no processor's."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._obs = np.zeros(4, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode that never ends."""
        super().reset(seed=seed)
        return self._obs, {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Sleep."""
        time.sleep(self._step_s)
        return self._obs, 0.0, False, False, {}


class Counting:
    """A training loop that trains nothing and counts steps, once all actors are at work."""

    def __init__(self, actors: int, seconds: float) -> None:
        self._actors = actors
        self._seconds = seconds
        self.env_steps_per_s = 0.0

    def run(self, trainer: AsyncTrainer) -> None:
        """Count for a while, then end the run."""
        table, deadline = trainer.proxy.actors, time.monotonic() + _START_DEADLINE_S
        while len(table.rows()) < self._actors:
            trainer.interrupter.raise_if_failed()
            assert time.monotonic() < deadline, "not all actors have got going"
            time.sleep(0.05)
        # Counts arrive once a second, so a difference of them would be coarse; each actor's own
        # rate since its report before is exact.
        rates, until = [], time.monotonic() + self._seconds
        while time.monotonic() < until:
            time.sleep(1.0)
            rates.append(sum(row.steps_per_s for row in table.rows().values()))
        self.env_steps_per_s = statistics.mean(rates)
        trainer.interrupter.stop("measured")


def measure(actors: int, *, step_s: float, seconds: float) -> float:
    """Return the environment steps a second of so many actors."""
    loop = Counting(actors, seconds)
    config = AsyncConfig(
        actors=actors,
        limiter=RateLimiterConfig(samples_per_insert=0.0),
        evaluation=EvaluationConfig(where="off"),
    )
    make = make_batch(partial(Sleeper, step_s), 1)
    build_async_trainer(DQNConfig(), make, config, strategy=loop).train()
    return loop.env_steps_per_s


def main() -> None:
    """Measure one and many in turns."""
    parser = make_parser(__doc__)
    parser.add_argument("--actors", type=positive, default=64)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    args = parser.parse_args()
    origin = provenance()

    def take(actors: int) -> float:
        return measure(actors, step_s=args.step_ms / 1000, seconds=args.seconds)

    ideal = f"{args.actors} times one actor"
    rounds = in_turns(
        {
            f"{args.actors} actors": lambda: take(args.actors),
            ideal: lambda: args.actors * take(1),
        },
        args.repeats,
    )
    what = f"{args.actors} actors, {args.step_ms:g} ms asleep a step / {ideal}"
    path = save(
        args.results,
        "slow_envs",
        question=__doc__,
        settings=settings_of(args),
        comparisons=[
            compare(rounds, f"{args.actors} actors", ideal, what=what, unit="env steps/s")
        ],
        origin=origin,
        details={"env_steps_per_s": rounds},
    )
    show(path)


if __name__ == "__main__":
    main()
