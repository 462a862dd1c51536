"""Stage `env`: our batch of environments, stepped with random actions in one process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from asyncrl.benchmarking.bare_envs import random_actions, turn_native, turn_plain
from asyncrl.benchmarking.load import Load
from asyncrl.benchmarking.result import Quantity
from asyncrl.benchmarking.rounds import Rates, repeat_rate
from asyncrl.env import BatchEnv
from asyncrl.types import Array

__all__ = ["EnvStage", "turn_batch"]

_TURNS = 256


class EnvStage:
    """A `BatchEnv` against the very environments it holds, with the same actions."""

    def __init__(self, load: Load) -> None:
        workload = load.workload
        self._load = load
        self._native = workload.env_config.vectorization == "native"
        self._actions = random_actions(load.spec, _TURNS, workload.envs_per_actor)
        self.quantities = (
            Quantity(
                stage="env",
                env=workload.env,
                unit="agent steps/s",
                limit_is="native vector env" if self._native else "bare loop over the envs",
                frame_skip=load.frame_skip,
                settings=workload.env_settings(),
            ),
        )

    def measure_value(self) -> Rates:
        """Step the batch."""
        with closing(self._load.workload.env_config.build()) as batch:
            return [self._rate(turn_batch(batch, self._actions))]

    def measure_limit(self) -> Rates:
        """Step the environments themselves."""
        config = self._load.workload.env_config
        if self._native:
            with closing(config.make_vector()) as vector:
                return [self._rate(turn_native(vector, self._actions))]
        envs: list[Any] = []
        try:
            envs += [config.make_plain() for _ in range(config.n_envs)]
            return [self._rate(turn_plain(envs, self._actions))]
        finally:
            for env in envs:
                env.close()

    def close(self) -> None:
        """Have nothing to release: each measurement makes its environments anew."""

    def _rate(self, turn: Callable[[], float]) -> float:
        workload = self._load.workload
        return repeat_rate(turn, seconds=workload.seconds, warm_up_seconds=workload.warm_up_seconds)


def turn_batch(batch: BatchEnv, actions: Array) -> Callable[[], int]:
    """Return what steps a batch once and says how many steps that were."""
    batch.reset(0)
    table = list(actions)
    turn = 0

    def take_turn() -> int:
        nonlocal turn
        outcome = batch.step(table[turn])
        turn = (turn + 1) % len(table)
        return batch.n_envs if outcome.stepped is None else int(outcome.stepped.sum())

    return take_turn
