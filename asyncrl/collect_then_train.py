"""A training loop in epochs: first collect, then train, then publish, and again.

    train_async(agent, make_env, config, strategy=CollectThenTrain(env_steps=2000, opt_steps=100))

Actors never pause: what they do while the learner trains goes into the replay, too, as far as the
limiter lets it. In a synchronous run the same is `TrainerConfig(opt_interval_env_steps=2000,
opt_steps_per_interval=100)`, and there nothing happens meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.async_trainer import AsyncTrainer
from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import check_declared

_ROUND_WAIT_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectThenTrain:
    """A `Strategy` that learns in rounds, each from experience that is new since the last one."""

    env_steps: int
    """Environment steps of all actors, from the end of one round of learning to the next; fewer
    only where the limiter keeps actors from going on, since that waits for samples."""

    opt_steps: int
    """Optimisation steps of a round; after it, all actors get the model."""

    def __post_init__(self) -> None:
        check_declared(self, "strategy")
        for name in ("env_steps", "opt_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"strategy.{name} must be at least 1, got {getattr(self, name)}")

    def run(self, trainer: AsyncTrainer) -> None:
        """Alternate until the run is to end."""
        while not trainer.should_stop:
            self.collect(trainer)
            self.train(trainer)

    def collect(self, trainer: AsyncTrainer) -> None:
        """Wait until there is as much new experience as a round needs."""
        proxy = trainer.proxy
        enough = proxy.ledger.env_steps + self.env_steps
        while not proxy.blocked and proxy.ledger.env_steps < enough:
            if trainer.interrupter.wait(_ROUND_WAIT_S):
                break
            trainer.books.watch.lap("wait")
            trainer.keep_books()
        trainer.interrupter.raise_if_failed()
        trainer.books.watch.lap("wait")

    def train(self, trainer: AsyncTrainer) -> None:
        """Learn as often as a round says, and hand out the model that comes of it."""
        done = 0
        while done < self.opt_steps and not trainer.should_stop:
            # What is drawn ahead would be older than the next round's experience.
            done += trainer.run_step(turns_left=self.opt_steps - done)
        if done:
            trainer.publish()
