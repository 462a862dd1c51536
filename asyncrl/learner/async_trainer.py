"""A trainer whose batches come from actors, and rounds of collecting and learning."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.core.declared import Count, check_declared
from asyncrl.fleet.actor_manager import ActorStatus
from asyncrl.learner.actor_source import ActorSource
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.learner.trainer import Trainer


class AsyncTrainer(Trainer):
    """Optimises an agent on what actors send, and sends them its models.

    A run starts the receiving thread, publishes a first model and then starts the actors. However
    it ends, it leaves no process, thread or file behind. An error in any part is raised from it.
    """

    source: ActorSource
    """Where the batches come from."""

    @property
    def proxy(self) -> ReplayBufferProxy:
        """What receives the actors' experience."""
        return self.source.proxy

    @property
    def actors(self) -> int:
        """Target number of actors."""
        return self.source.manager.size

    def set_actors(self, actors: int) -> None:
        """Let the run have this number of actors from now on. Any thread; does not wait.

        Actors that become too many, those with the highest numbers, send what they have before they
        exit. A resumed run has as many actors as before, unless its settings have another number
        than then.
        """
        self.source.set_actors(actors)

    def fleet(self) -> list[ActorStatus]:
        """Return each actor's state, host and process, also of those that have left. Any thread."""
        return self.source.manager.fleet()


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectThenTrain:
    """A `Strategy` that alternates between collecting experience and learning from the replay.

    Each round learns from the whole replay. With `TrajectoryQueueConfig` that is what was collected
    since the last round, and what that round left.
    """

    env_steps: Count
    """Environment steps between two rounds of learning. With actors, those of all of them, and
    fewer only if the rate limiter blocks the actors, since it then waits for samples."""

    opt_steps: Count
    """Optimisation steps per round. After it, all actors get the model."""

    def __post_init__(self) -> None:
        check_declared(self, "strategy")

    def run(self, trainer: Trainer) -> None:
        """Alternate until the run ends."""
        while not trainer.should_stop:
            self.collect(trainer)
            self.train(trainer)

    def collect(self, trainer: Trainer) -> None:
        """Collect as much new experience as a round needs."""
        trainer.source.collect(self.env_steps)

    def train(self, trainer: Trainer) -> None:
        """Do one round's optimisation steps, and publish the new model."""
        done = 0
        while done < self.opt_steps and not trainer.should_stop:
            # Batches sampled ahead would lack the next round's experience.
            done += trainer.run_step(turns_left=self.opt_steps - done)
        if done:
            trainer.publish()
