"""Runs with injected faults, and what the tests of them ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from asyncrl.core.types import ActorId
from asyncrl.fleet.config import ActorManagerConfig, OnException, RestartPolicyConfig
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from tests.integration.test_train_async import Loop, config


def with_restarts(
    actors: int,
    *,
    step_timeout_s: float = 300.0,
    on_exception: OnException = "restart",
    inference: Literal["actor", "learner", "server"] = "actor",
) -> RunConfig:
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
    """Holds once this number of restarts is reached, and steps were made since.

    An actor may count more than once. Which one fails is chance where environments fail by turns:
    one that starts late finds that another, which is back already, has failed in its place.
    """

    def __init__(self, restarts: int) -> None:
        self._restarts = restarts
        self._steps_before: dict[ActorId, int] = {}

    def __call__(self, trainer: AsyncTrainer) -> bool:
        rows = trainer.proxy.actors.rows()
        if sum(row.restarts for row in rows.values()) < self._restarts:
            return False
        if not self._steps_before:
            self._steps_before = {i: row.env_steps for i, row in rows.items() if row.restarts}
        return all(rows[i].env_steps > steps for i, steps in self._steps_before.items())
