"""Stage `env`: our batch of environments, stepped with random actions in one process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from asyncrl.benchmarking.bare_envs import turn_native, turn_plain
from asyncrl.benchmarking.load import Load
from asyncrl.benchmarking.rates import Repeating
from asyncrl.benchmarking.result import Quantity
from asyncrl.benchmarking.rounds import Rates
from asyncrl.core.env import BatchEnv
from asyncrl.core.types import Array
from asyncrl.envs.spaces import random_actions

_TURNS = 256


class EnvStage:
    """A `BatchEnv` against the very environments it holds, with the same actions."""

    def __init__(self, load: Load) -> None:
        workload = load.workload
        self._load = load
        self._native = workload.env_config.vectorization == "native"
        lead = _TURNS, workload.envs_per_actor
        self._actions = random_actions(load.spec.action, lead, np.random.default_rng(0))
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

        self.slices = workload.slices
        self._slice_seconds = workload.seconds / workload.slices
        self._open = ExitStack()
        with self._open as undo:
            self._ours = self._repeating(self._turn_ours(undo))
            self._bare = self._repeating(self._turn_bare(undo))
            self._open = undo.pop_all()

    def measure_value(self) -> Rates:
        """Step the batch."""
        return [self._ours.rate(self._slice_seconds)]

    def measure_limit(self) -> Rates:
        """Step the environments themselves."""
        return [self._bare.rate(self._slice_seconds)]

    def close(self) -> None:
        """Close all environments."""
        self._open.close()

    def _turn_ours(self, opened: ExitStack) -> Callable[[], int]:
        batch = self._load.workload.env_config.build()
        opened.callback(batch.close)
        return turn_batch(batch, self._actions)

    def _turn_bare(self, opened: ExitStack) -> Callable[[], int]:
        config = self._load.workload.env_config
        if self._native:
            vector = config.make_vector()
            opened.callback(vector.close)
            return turn_native(vector, self._actions)
        envs = []
        for _ in range(config.n_envs):
            envs.append(config.make_plain())
            opened.callback(envs[-1].close)
        return turn_plain(envs, self._actions)

    def _repeating(self, turn: Callable[[], int]) -> Repeating:
        return Repeating(turn, warm_up_seconds=self._load.workload.warm_up_seconds)


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
