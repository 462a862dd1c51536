"""How much faster do actors act when a server computes large networks in batches for all of them?

    python -m benchmarks.speed.serving [--actors 16] [--repeats 3] [--seconds 6] [--widths 1024 ...]

Acting only: nothing is learned. Networks are computed in the server and in actors, in turns; the
result includes an actor's memory.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Literal, get_args

import psutil

from asyncrl.agents.dqn import DQNConfig
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.config import RateLimiterConfig
from asyncrl.learner.stop_conditions import MaxSeconds
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer
from benchmarks.common import compare, in_turns, keep, make_parser, provenance

Where = Literal["actor", "learner", "server"]
_LONGEST_S = 90.0


class Watch:
    """Counts environment steps for a while, once all actors have begun."""

    def __init__(self, actors: int, seconds: float) -> None:
        self._actors, self._seconds = actors, seconds
        self.steps_per_s = 0.0
        self.actor_mb = 0.0

    def run(self, trainer: AsyncTrainer) -> None:
        """Wait for all actors, then measure."""
        while not trainer.should_stop and len(self._begun(trainer)) < self._actors:
            self._pass(trainer, 0.1)
        self._pass(trainer, 1.0)
        before, at = trainer.env_steps, time.monotonic()
        self._pass(trainer, self._seconds)
        self.steps_per_s = (trainer.env_steps - before) / (time.monotonic() - at)
        self.actor_mb = _actor_mb()
        trainer.interrupter.stop("measured")

    @staticmethod
    def _begun(trainer: AsyncTrainer) -> list[int]:
        rows = trainer.proxy.actors.rows().values()
        return [row.env_steps for row in rows if row.env_steps]

    @staticmethod
    def _pass(trainer: AsyncTrainer, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not trainer.should_stop and time.monotonic() < until:
            trainer.interrupter.wait(0.05)
            trainer.run_services()


def _actor_mb() -> float:
    """Return the private memory of an actor, on average."""
    processes = psutil.Process().children(recursive=True)
    own = [
        p.memory_full_info().uss / 1e6 for p in processes if p.name().startswith("asyncrl-actor")
    ]
    return statistics.fmean(own) if own else 0.0


def acting(where: Where, actors: int, seconds: float, widths: tuple[int, ...]) -> Watch:
    """Return what was seen of actors with one environment each."""
    watch = Watch(actors, seconds)
    config = RunConfig(
        actors=actors,
        inference=where,
        limiter=RateLimiterConfig(samples_per_insert=0.0, min_size=1000),
        evaluate=EvaluationConfig(where="off"),
    )
    agent = DQNConfig(hidden=widths, device="cpu")
    make_env = EnvConfig(id="CartPole-v1", n_envs=1).build
    stop = MaxSeconds(_LONGEST_S)
    build_trainer(
        config, agent=agent, env=make_env, strategy=watch, stop=stop, recorder=None
    ).train()
    return watch


def main() -> None:
    """Measure steps in turns, and keep them."""
    parser = make_parser(__doc__, repeats=3)
    parser.add_argument("--actors", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--widths", type=int, nargs="+", default=[1024] * 4)
    args, origin = parser.parse_args(), provenance()
    actor_mb: dict[str, float] = {}

    def measure(where: Where) -> float:
        watch = acting(where, args.actors, args.seconds, tuple(args.widths))
        actor_mb[where] = watch.actor_mb
        return watch.steps_per_s

    wheres: tuple[Where, ...] = get_args(Where)
    rounds = in_turns({where: partial(measure, where) for where in wheres}, args.repeats)
    of = f"{args.actors} actors of one CartPole, {'-'.join(map(str, args.widths))} units"
    what = {where: f"networks in the {where} or in actors, {of}" for where in ("learner", "server")}
    comparisons = [
        compare(rounds, where, "actor", what=words, unit="env steps/s")
        for where, words in what.items()
    ]
    details = {"steps_per_s": rounds, "actor_mb": actor_mb}
    keep(args, "serving", __doc__, comparisons, origin=origin, details=details)


if __name__ == "__main__":
    main()
