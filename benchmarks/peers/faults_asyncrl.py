"""asyncrl: DQN with two actors.

Careful: a step may take 10 s, not 300, and environments that fail are rebuilt.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from asyncrl.agents.dqn import DQNConfig
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.metrics.machine import machine
from asyncrl.supervision.actor_manager import ActorManagerConfig
from asyncrl.supervision.restart_policy import RestartPolicyConfig
from asyncrl.training.asynchronous import train_async
from asyncrl.training.config import AsyncConfig
from benchmarks.peers.faulty import Run, make_env, running

_NOTE_S = 0.1


class Notes:
    """The usual training loop, which notes its progress."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._bad_rows = self._learned = 0
        self._noted_at = 0.0

    def run(self, trainer: AsyncTrainer) -> None:
        """Train until asked to stop."""
        while not trainer.should_stop:
            batch = trainer.sample()
            if batch is not None:
                self._bad_rows += _bad_rows(batch)
                trainer.learn(batch)
                self._learned += 1
            trainer.run_services()
            if time.monotonic() > self._noted_at + _NOTE_S:
                self._note(trainer)

    def _note(self, trainer: AsyncTrainer) -> None:
        self._noted_at = time.monotonic()
        balance = trainer.proxy.ledger.balance()
        params = trainer.agent.model_info().params
        self._run.progress(
            learned=self._learned,
            received=balance.stored,
            lost=balance.lost + balance.dropped,
            bad_rows=self._bad_rows,
            bad_params=not all(np.isfinite(array).all() for array in params.values()),
        )
        if self._run.asked("stop"):
            trainer.interrupter.stop("enough was seen")


def _bad_rows(batch: Mapping[str, Any]) -> int:
    bad = [~np.isfinite(batch[name]) for name in ("obs", "reward", "next_obs")]
    return int(np.any([rows.reshape(len(rows), -1).any(-1) for rows in bad], axis=0).sum())


def main() -> None:
    """Train until asked to stop."""
    with running(__doc__, machine()["asyncrl"]) as run:
        kwargs = {"directory": str(run.directory), "fault": run.fault}
        env = EnvConfig(id=f"{make_env.__module__}:{make_env.__name__}", kwargs=kwargs)
        config = AsyncConfig()
        if run.careful:
            restart = RestartPolicyConfig(on_exception="restart_env")
            supervision = ActorManagerConfig(step_timeout_s=10.0, restart=restart)
            config = AsyncConfig(supervision=supervision)
        well = partial(EnvConfig.build, EnvConfig(id="CartPole-v1"))
        train_async(DQNConfig(), env.build, config, make_eval_env=well, strategy=Notes(run))


if __name__ == "__main__":
    main()
