"""A task of one step whose answer is known, and data of a policy that is half right."""

from __future__ import annotations

import numpy as np

from asyncrl.core.agent import Policy, evaluation_mode
from asyncrl.core.env import DiscreteSpec, EnvSpec
from asyncrl.core.types import Array, Columns


def best_action(obs: Array, spec: EnvSpec) -> Array:
    """Return what is worth 1: the largest of three numbers, or a point on a line between bounds."""
    if isinstance(spec.action, DiscreteSpec):
        choice: Array = obs.argmax(axis=1)
        return choice
    side = 0.8 * np.sign(obs[:, :2])
    point: Array = (side * [1.0, 2.5] + [0.0, 2.5]).astype(np.float32)
    return point


def rewards(obs: Array, action: Array, spec: EnvSpec) -> Array:
    """Return 1 for the best action, and less for worse ones."""
    best = best_action(obs, spec)
    if isinstance(spec.action, DiscreteSpec):
        right: Array = (action == best).astype(np.float32)
        return right
    distance = np.abs(action - best) / [1.0, 2.5]
    worth: Array = np.clip(1.0 - distance.mean(axis=1), 0.0, 1.0).astype(np.float32)
    return worth


def mixed_data(spec: EnvSpec) -> list[Columns]:
    """Return batches of a policy that is right in a third of the states and always wrong elsewhere.

    A clone of its most likely action is wrong everywhere.
    """
    random, rows = np.random.default_rng(0), 64
    data: list[Columns] = []
    for _ in range(600):
        obs = random.normal(size=(rows, 3)).astype(np.float32)
        best = best_action(obs, spec)
        if isinstance(spec.action, DiscreteSpec):
            wrong = (best + 1) % 3
            action = np.where(random.random(rows) < 0.33, best, wrong)
        else:
            mirrored = np.array([0.0, 5.0]) - best
            right = random.random((rows, 1)) < 0.33
            action = np.where(right, best, mirrored) + 0.1 * random.normal(size=best.shape)
            action = action.clip([-1.0, 0.0], [1.0, 5.0]).astype(np.float32)
        reward = rewards(obs, action, spec)
        data.append(
            {
                "obs": obs,
                "next_obs": obs,
                "action": action,
                "reward": reward,
                "discount": np.zeros(rows, np.float32),
                "discounted_return": reward,
            }
        )
    return data


def value_of(policy: Policy, spec: EnvSpec) -> float:
    """Return the value of a policy's most likely actions."""
    obs = np.random.default_rng(1).normal(size=(1000, 3)).astype(np.float32)
    with evaluation_mode(policy):
        return float(rewards(obs, policy.act(obs).action, spec).mean())
