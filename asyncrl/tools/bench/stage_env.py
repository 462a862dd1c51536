"""Stage `env`: a batch of environments, stepped with random actions in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from asyncrl.core.agent import Policy
from asyncrl.core.env import BatchEnv, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.launcher import Progress
from asyncrl.core.types import Array, Columns
from asyncrl.envs.spaces import random_actions
from asyncrl.tools.bench.load import Load
from asyncrl.tools.bench.measure import Stage, side_by_side
from asyncrl.tools.bench.result import Quantity

_ROWS = 64


def turn_plain(envs: Sequence[Any], actions: Array) -> Callable[[], int]:
    """Return a function that steps all environments once and returns the number of steps.

    `actions` are (turns, n_envs, ...), used in turn, repeatedly.
    """
    for i, env in enumerate(envs):
        env.reset(seed=i)
    start = _start(envs[0].action_space)
    # Python ints: discrete environments are faster with them.
    table = [(row + start).tolist() if row.ndim == 1 else list(row) for row in actions]
    steps = [env.step for env in envs]
    resets = [env.reset for env in envs]
    turn = 0

    def take_turn() -> int:
        nonlocal turn
        row = table[turn]
        turn = (turn + 1) % len(table)
        for step, reset, action in zip(steps, resets, row, strict=True):
            _, _, terminated, truncated, _ = step(action)
            if terminated or truncated:
                reset()
        return len(steps)

    return take_turn


def turn_native(env: Any, actions: Array) -> Callable[[], int]:  # noqa: ANN401  # of any make
    """Return a function that steps a vector environment once and returns the number of steps.

    A step in which an environment only resets does not count.
    """
    env.reset(seed=0)
    mode = _autoreset_mode(env)
    table = list(actions + _start(env.single_action_space))
    turn, resetting = 0, 0

    def take_turn() -> int:
        nonlocal turn, resetting
        _, _, terminated, truncated, _ = env.step(table[turn])
        turn = (turn + 1) % len(table)
        ended = np.logical_or(terminated, truncated)
        steps: int = env.num_envs - resetting
        if mode == "NextStep":
            resetting = int(np.count_nonzero(ended))
        elif mode == "Disabled" and ended.any():
            env.reset(options={"reset_mask": ended})
        return steps

    return take_turn


def play_plain(envs: Sequence[Any], policy: Policy, spec: EnvSpec, progress: Progress) -> None:
    """Run a policy in plain environments and write columns, endlessly."""
    n_envs = len(envs)
    columns = _columns(spec, n_envs)
    obs = np.array([env.reset(seed=i)[0] for i, env in enumerate(envs)], spec.observation.dtype)
    start = _start(envs[0].action_space)
    turn = 0
    while True:
        action = policy.act(obs).action
        row = turn % _ROWS
        columns["obs"][row] = obs
        columns["action"][row] = action
        rewards, terminations, truncations = [], [], []
        acts = (action + start).tolist() if action.ndim == 1 else action
        for i, (env, act) in enumerate(zip(envs, acts, strict=True)):
            after, reward, terminated, truncated, _ = env.step(act)
            if terminated or truncated:
                after, _ = env.reset()
            obs[i] = after
            rewards.append(reward)
            terminations.append(terminated)
            truncations.append(truncated)
        columns["reward"][row] = rewards
        columns["terminated"][row] = terminations
        columns["truncated"][row] = truncations
        turn += 1
        progress.turn(turn * n_envs)


def play_native(env: Any, policy: Policy, spec: EnvSpec, progress: Progress) -> None:  # noqa: ANN401
    """Run a policy in a vector environment and write columns, endlessly."""
    columns = _columns(spec, env.num_envs)
    obs, _ = env.reset(seed=0)
    mode = _autoreset_mode(env)
    start = _start(env.single_action_space)
    turn, produced, resetting = 0, 0, 0
    while True:
        action = policy.act(obs).action
        row = turn % _ROWS
        columns["obs"][row] = obs
        columns["action"][row] = action
        obs, reward, terminated, truncated, _ = env.step(action + start if start else action)
        columns["reward"][row] = reward
        columns["terminated"][row] = terminated
        columns["truncated"][row] = truncated
        produced += env.num_envs - resetting
        ended = np.logical_or(terminated, truncated)
        if mode == "NextStep":
            resetting = int(np.count_nonzero(ended))
        elif mode == "Disabled" and ended.any():
            obs, _ = env.reset(options={"reset_mask": ended})
        turn += 1
        progress.turn(produced)


def _columns(spec: EnvSpec, n_envs: int) -> Columns:
    if isinstance(spec.observation, PackedSpec):
        names = ", ".join(name for name, _ in spec.observation.fields)
        raise ConfigError(
            f"the bare loop needs observations of one array, but these have the fields {names}; "
            "measure an environment with a Box observation instead"
        )
    shape = (_ROWS, n_envs)
    return {
        "obs": np.zeros((*shape, *spec.observation.shape), spec.observation.dtype),
        "action": np.zeros((*shape, *spec.action.shape), spec.action.dtype),
        "reward": np.zeros(shape, np.float32),
        "terminated": np.zeros(shape, bool),
        "truncated": np.zeros(shape, bool),
    }


def _start(space: Any) -> int:  # noqa: ANN401
    """Return the first action of an environment; policies count actions from 0."""
    start = getattr(space, "start", 0)
    return 0 if np.ndim(start) else int(start)  # MultiDiscrete starts at 0 on both sides


def _autoreset_mode(env: Any) -> str:  # noqa: ANN401
    mode = env.metadata["autoreset_mode"]
    return str(getattr(mode, "value", mode))


_TURNS = 256


def env_stage(load: Load) -> Stage:
    """Return `BatchEnv` against a bare loop over the same environments, with the same actions."""
    workload, config = load.workload, load.workload.env_config
    native = config.vectorization == "native"
    lead = _TURNS, workload.envs_per_actor
    actions = random_actions(load.spec.action, lead, np.random.default_rng(0))
    quantity = Quantity(
        stage="env",
        env=workload.env,
        unit="agent steps/s",
        limit_is="native vector env" if native else "bare loop over the envs",
        frame_skip=load.frame_skip,
        settings=workload.env_settings(),
    )
    with ExitStack() as undo:
        batch = config.build()
        undo.callback(batch.close)
        if native:
            vector = config.make_vector()
            undo.callback(vector.close)
            bare = turn_native(vector, actions)
        else:
            envs = []
            for _ in range(config.n_envs):
                envs.append(config.make_plain())
                undo.callback(envs[-1].close)
            bare = turn_plain(envs, actions)
        ours = turn_batch(batch, actions)
        return side_by_side([quantity], [ours], [bare], workload, release=undo.pop_all().close)


def turn_batch(batch: BatchEnv, actions: Array) -> Callable[[], int]:
    """Return a function that steps a batch once and returns the number of steps."""
    batch.reset(0)
    table = list(actions)
    turn = 0

    def take_turn() -> int:
        nonlocal turn
        outcome = batch.step(table[turn])
        turn = (turn + 1) % len(table)
        return batch.n_envs if outcome.stepped is None else int(outcome.stepped.sum())

    return take_turn
