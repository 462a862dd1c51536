"""Runs with injected faults, and what the tests of them ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from asyncrl.core.types import ActorId
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.supervision.actor_manager import ActorManagerConfig
from asyncrl.supervision.restart_policy import OnException, RestartPolicyConfig
from asyncrl.training.common_config import EvaluationConfig
from asyncrl.training.config import AsyncConfig
from tests.integration.test_train_async import Loop, config


def with_restarts(
    actors: int,
    *,
    step_timeout_s: float = 300.0,
    on_exception: OnException = "restart",
    inference: Literal["actor", "learner", "server"] = "actor",
) -> AsyncConfig:
    """Return settings under which actors may die as often as they like."""
    restart = RestartPolicyConfig(on_exception=on_exception, max_restarts=1000, backoff_max_s=0.2)
    return config(
        actors=actors,
        inference=inference,
        supervision=ActorManagerConfig(step_timeout_s=step_timeout_s, restart=restart),
        evaluate=EvaluationConfig(where="off"),
    )


def until(condition: Callable[[AsyncTrainer], bool]) -> Loop:
    """Train until something holds."""

    def look(trainer: AsyncTrainer) -> None:
        if condition(trainer):
            trainer.interrupter.stop("seen")

    return Loop(look)


def adds_up(trainer: AsyncTrainer) -> bool:
    balance = trainer.proxy.ledger.balance()
    parts = balance.stored + balance.dropped + balance.lost
    return balance.in_flight == 0 and balance.produced == parts > 0


class CameBack:
    """Holds once all actors were restarted and have made steps since."""

    def __init__(self, actors: int) -> None:
        self._actors = actors
        self._steps_before: dict[int, int] = {}

    def __call__(self, trainer: AsyncTrainer) -> bool:
        rows = trainer.proxy.actors.rows()
        for actor_id, row in rows.items():
            if row.restarts:
                self._steps_before.setdefault(actor_id, row.env_steps)
        return len(self._steps_before) == self._actors and all(
            rows[ActorId(i)].env_steps > steps for i, steps in self._steps_before.items()
        )
