"""`AsyncTrainer` inside a research loop: actors and replay are asyncrl's, the loop is one's own.

Here the loop keeps a moving average of the learner's model, and every 200 steps looks at something
that asyncrl knows nothing of: how far the model has moved from that average.
"""

from __future__ import annotations

import numpy as np

from asyncrl import AsyncConfig, AsyncTrainer, EvaluationConfig, build_async_trainer
from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.types import Array
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.train_result import TrainResult


class AveragingLoop:
    """Any object with `run(trainer)` is a training loop."""

    def __init__(self, opt_steps: int) -> None:
        self.opt_steps = opt_steps
        self.average: dict[str, Array] = {}

    def run(self, trainer: AsyncTrainer) -> None:
        """Learn, and look."""
        counts = trainer.books.counts
        while counts.opt_steps < self.opt_steps and not trainer.should_stop:
            # Waits for data, samples, optimises, publishes, keeps books; tells if it could learn.
            learned = trainer.run_step()
            if learned and counts.opt_steps % 200 == 0:
                self.look(trainer)

    def look(self, trainer: AsyncTrainer) -> None:
        """Compare the model with its average."""
        params = trainer.agent.model_info().params
        self.average = {
            name: 0.9 * self.average.get(name, value) + 0.1 * value
            for name, value in params.items()
        }
        moved = sum(float(np.square(params[n] - self.average[n]).sum()) for n in params) ** 0.5
        print(f"{trainer.books.counts.opt_steps} optimisation steps, {moved:.3f} from the average")


def main(opt_steps: int = 2000) -> TrainResult:
    """Wire a run together and give it the loop."""
    trainer = build_async_trainer(
        DQNConfig(),
        EnvConfig(id="CartPole-v1", n_envs=8).build,
        AsyncConfig(actors=2, evaluation=EvaluationConfig(where="off")),
        strategy=AveragingLoop(opt_steps),
    )
    return trainer.train()  # starts everything, runs the loop, leaves nothing behind


if __name__ == "__main__":
    main()
