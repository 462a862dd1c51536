"""Stage `train`: a whole run, learner and actors at once, against each of them alone."""

from __future__ import annotations

import time
from functools import partial

from asyncrl.benchmarking.learner import LearnerStage
from asyncrl.benchmarking.load import Load
from asyncrl.benchmarking.rates import growth_rate, wait_until_going
from asyncrl.benchmarking.result import Quantity
from asyncrl.benchmarking.rounds import Rates
from asyncrl.benchmarking.sample import SampleStage, stored_by
from asyncrl.core.interrupter import CrashForwardingThread
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.training.asynchronous import build_async_trainer


class TrainStage:
    """Both sides run as fast as they can: no rate limiter makes one wait for the other."""

    slices = 1

    def __init__(self, load: Load) -> None:
        workload = load.workload
        self._load = load
        self._learner = LearnerStage(load, slices=1)
        self._sample = SampleStage(load)
        settings = {
            **workload.env_settings(),
            **self._learner.quantities[0].settings,
            "actors": workload.actors,
            "segment_length": workload.segment_length,
            "frame_stack": load.frame_stack,
        }
        self.quantities = (
            Quantity(
                stage="train",
                case="learner",
                env=workload.env,
                unit="opt steps/s",
                limit_is="learner alone",
                settings=settings,
            ),
            Quantity(
                stage="train",
                case="actors",
                env=workload.env,
                unit="agent steps/s",
                limit_is="actors alone",
                frame_skip=load.frame_skip,
                settings=settings,
            ),
        )

    def measure_value(self) -> Rates:
        """Count both in one run."""
        load = self._load
        loop = _Loop(load)
        build_async_trainer(
            load.agent, load.workload.env_config.build, load.async_config(), strategy=loop
        ).train()
        return loop.rates

    def measure_limit(self) -> Rates:
        """Measure the learner without actors, then actors without a learner."""
        return [*self._learner.measure_value(), *self._sample.measure_value()]

    def close(self) -> None:
        """Let go of the memory."""
        self._learner.close()


class _Loop:
    """A training loop whose two sides a thread counts for a while, and then ends the run."""

    def __init__(self, load: Load) -> None:
        self._workload = load.workload
        self.rates: Rates = ()

    def run(self, trainer: AsyncTrainer) -> None:
        counter = CrashForwardingThread(
            trainer.interrupter, partial(self._count, trainer), "asyncrl-bench"
        )
        counter.start()
        while not trainer.should_stop:
            trainer.run_step()
        counter.join()

    def _count(self, trainer: AsyncTrainer) -> None:
        counts = trainer.books.counts

        def count() -> tuple[int, int]:
            stored, actors = stored_by(trainer)
            return stored, min(actors, counts.opt_steps)

        wait_until_going(count, self._workload.actors, "actors")
        time.sleep(self._workload.warm_up_seconds)
        began, opt_steps = time.monotonic(), counts.opt_steps
        env_steps_per_s = growth_rate(count, self._workload.seconds)
        opt_steps_per_s = (counts.opt_steps - opt_steps) / (time.monotonic() - began)
        self.rates = [opt_steps_per_s, env_steps_per_s]
        trainer.interrupter.stop("measured")
