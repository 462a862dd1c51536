"""`AsyncTrainer` in a custom training loop: asyncrl provides the actors and the replay.

The loop keeps a moving average of the learner's model. Every 200 steps it prints a number that
asyncrl does not compute: the distance between the model and this average.
"""

from __future__ import annotations

import numpy as np

from asyncrl import EnvConfig, EvaluationConfig, MaxOptSteps, RunConfig, TrainResult, build_trainer
from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.types import Array


def main(opt_steps: int = 2000) -> TrainResult:
    """Build a trainer and run the loop."""
    trainer = build_trainer(
        RunConfig(actors=2, evaluate=EvaluationConfig(where="off")),
        agent=DQNConfig(),
        env=EnvConfig(id="CartPole-v1", n_envs=8).build,
        stop=MaxOptSteps(opt_steps),
    )
    average: dict[str, Array] = {}
    with trainer:  # starts the actors, and stops them even if the loop raises
        for batch in trainer.batches():
            trainer.learn(batch)
            if trainer.opt_steps % 200:
                continue
            params = trainer.agent.model_info().params
            average = {n: 0.9 * average.get(n, value) + 0.1 * value for n, value in params.items()}
            moved = sum(float(np.square(params[n] - average[n]).sum()) for n in params) ** 0.5
            print(f"{trainer.opt_steps} steps, {moved:.3f} from the average")
    return trainer.result()


if __name__ == "__main__":
    main()
