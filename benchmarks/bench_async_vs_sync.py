"""What do actor processes bring? The same DQN on CartPole-v1, asynchronous and synchronous.

Both sides have the same agent, the same number of environments, batches, samples per insert and
evaluations, and run until an evaluation reaches 475. Compared are seconds, environment steps and
optimisation steps a second; with them go the age of the policy behind the sampled batches and, of
a run of its own, how long experience of an actor is missing after its process was killed.

    python -m benchmarks.bench_async_vs_sync --seeds 5
"""

from __future__ import annotations

import math
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import psutil

from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.stop_conditions import MaxSeconds, ReachesUpperBound, StopCondition
from asyncrl.learner.train_result import TrainResult
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.training.asynchronous import build_async_trainer, train_async
from asyncrl.training.config import EvaluationConfig
from asyncrl.training.presets import preset
from asyncrl.training.run_config import RunConfig
from asyncrl.training.synchronous import SyncConfig, TrainerConfig, train_sync
from benchmarks.common import Rounds, compare, make_parser, note, positive, provenance, save, show

_SCORE = 475.0
_DEADLINE_S = 60.0


def _config(seed: int) -> RunConfig:
    return replace(preset("dqn"), seed=seed)


def _stop(max_seconds: float) -> StopCondition:
    return ReachesUpperBound("eval_reward", _SCORE) | MaxSeconds(max_seconds)


def train_asynchronously(seed: int, max_seconds: float) -> tuple[TrainResult, MemoryRecorder]:
    """Train with the preset as it is."""
    config, recorder = _config(seed), MemoryRecorder()
    make_env = config.env_config().build
    make_eval_env = partial(config.env_config().build_for, config.evaluation.play.episodes)
    result = train_async(
        config.agent,
        make_env,
        config,
        stop=_stop(max_seconds),
        recorder=recorder,
        make_eval_env=make_eval_env,
    )
    return result, recorder


def train_synchronously(seed: int, max_seconds: float) -> tuple[TrainResult, MemoryRecorder]:
    """Train with the preset's numbers, all environments in one batch."""
    config, recorder = _config(seed), MemoryRecorder()
    n_envs = config.actors * config.envs_per_actor
    batch_size = config.trainer.batch_size
    trainer = TrainerConfig(
        batch_size=batch_size,
        opt_interval_env_steps=round(batch_size / config.limiter.samples_per_insert),
        warmup_env_steps=config.limiter.min_size,
        books=replace(config.trainer.books, record_interval_s=0.0, record_interval_opt_steps=250),
    )
    result = train_sync(
        config.agent,
        replace(config.env_config(), n_envs=n_envs).build,
        SyncConfig(seed=seed, replay=config.replay, trainer=trainer, play=config.evaluation.play),
        stop=_stop(max_seconds),
        recorder=recorder,
        make_eval_env=partial(config.env_config().build_for, config.evaluation.play.episodes),
    )
    return result, recorder


@dataclass(slots=True)
class Recovery:
    """A training loop that kills an actor, and waits until there is experience of its next life."""

    seconds: float = math.inf

    def run(self, trainer: AsyncTrainer) -> None:
        """Train a while, kill, and train on."""
        rows = trainer.proxy.actors.rows
        self._train_until(trainer, lambda: trainer.books.counts.opt_steps >= 100)
        (server,) = psutil.Process().children()
        server.children()[0].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        self._train_until(trainer, lambda: any(row.restarts for row in rows().values()))
        slot = next(i for i, row in rows().items() if row.restarts)
        before = rows()[slot].env_steps
        self._train_until(trainer, lambda: rows()[slot].env_steps > before)
        self.seconds = time.monotonic() - killed
        trainer.interrupter.stop("measured")

    def _train_until(self, trainer: AsyncTrainer, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, "it took too long"
            trainer.run_step()


def recover(seed: int) -> float:
    """Return the seconds from an actor's death to the first experience of its next life."""
    config, loop = _config(seed), Recovery()
    config = replace(config, evaluation=EvaluationConfig(where="off"))
    build_async_trainer(config.agent, config.env_config().build, config, strategy=loop).train()
    return loop.seconds


def _seconds(result: TrainResult) -> float:
    return math.inf if result.seconds_to_stop_bar is None else result.seconds_to_stop_bar


def main() -> None:
    """Train both sides seed by seed, and kill an actor for each seed."""
    parser = make_parser(__doc__, repeats=0)
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--max-seconds", type=float, default=120.0, help="of one training")
    args = parser.parse_args()
    origin = provenance()
    sides = {"async": train_asynchronously, "sync": train_synchronously}
    seconds: Rounds = {side: [] for side in sides}
    env_rates: Rounds = {side: [] for side in sides}
    opt_rates: Rounds = {side: [] for side in sides}
    lags: Rounds = {"versions": [], "seconds": []}
    recovery: Rounds = {"seconds": []}
    for seed in range(args.seeds):
        for side, train in sides.items():
            result, recorder = train(seed, args.max_seconds)
            seconds[side].append(_seconds(result))
            env_rates[side].append(result.env_steps / result.wall_s)
            opt_rates[side].append(result.opt_steps / result.wall_s)
            note(f"seed {seed}: {side} {seconds[side][-1]:.1f} s, {result.env_steps} env steps")
            if side == "async":
                for unit, values in lags.items():
                    name = f"lag/{unit}_mean"
                    values.append(statistics.median(r[name] for r in recorder.records if name in r))
        recovery["seconds"].append(recover(seed))
    what = "DQN on CartPole-v1, asynchronous / synchronous"
    path = save(
        args.results,
        "async_vs_sync",
        question=__doc__,
        settings={"seeds": args.seeds, "max_seconds": args.max_seconds},
        comparisons=[
            compare(seconds, "async", "sync", what=f"{what}: to 475", unit="s", paired=False),
            compare(env_rates, "async", "sync", what=what, unit="env steps/s"),
            compare(opt_rates, "async", "sync", what=what, unit="opt steps/s"),
        ],
        origin=origin,
        details={"lag": lags, "recovery": recovery},
    )
    show(path)


if __name__ == "__main__":
    main()
