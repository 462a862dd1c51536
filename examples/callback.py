"""A callback: a custom metric, a custom stop condition, evaluations on demand."""

from __future__ import annotations

from asyncrl import (
    Callback,
    EnvConfig,
    MaxOptSteps,
    ReachesUpperBound,
    RunConfig,
    Training,
    TrainResult,
    train_sync,
)
from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.recorder import Record


class Improvement(Callback):
    """Requests evaluations, and records the gain since the previous one."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.scores = [0.0]

    def step(self, trainer: Training) -> None:
        """Evaluate the current model after each `every` optimisation steps."""
        if trainer.opt_steps >= self.every * len(self.scores):
            evaluation = trainer.evaluate(timeout_s=60.0)
            self.scores.append(evaluation.score if evaluation else self.scores[-1])
            print(f"{self.scores[-1]} after {trainer.opt_steps} optimisation steps")

    def record(self, trainer: Training) -> Record:
        """Return the gain as a metric that stop conditions and `best_by` can use."""
        return {"mine/gain": self.scores[-1] - self.scores[-2]} if len(self.scores) > 1 else {}


def main(opt_steps: int = 5000, every: int = 1000) -> TrainResult:
    """Train until one gain reaches 300, or for `opt_steps` optimisation steps."""
    return train_sync(
        DQNConfig(hidden=(64, 64)),
        EnvConfig(id="CartPole-v1", n_envs=8).build,
        RunConfig(),
        stop=ReachesUpperBound("mine/gain", 300.0) | MaxOptSteps(opt_steps),
        callbacks=[Improvement(every)],
    )


if __name__ == "__main__":
    main()
