"""DQN and SAC in the manner of CleanRL: loops by hand, no framework.

Shows what a framework costs and what it is worth. Runs wherever torch and gymnasium are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import torch

from benchmarks.peers.cleanrl_parts import DQN, SAC, Array, Replay, mlp, pixel_net
from benchmarks.peers.interface import (
    ATARI,
    CARTPOLE,
    CHEETAH,
    PENDULUM,
    REPLAY_ROWS,
    SIZES,
    UPDATES,
    ZOO_DQN,
    ZOO_SAC,
    Request,
    Sizes,
    Stage,
    Training,
    Work,
    by_turns,
    make_rows,
    make_vector,
    measure_once,
    once,
    stepping,
)

ENVS: dict[str, dict[str, Any]] = {
    CARTPOLE: {"kind": "sync", "envs": 64, "threads": 1},
    CHEETAH: {"kind": "async", "envs": 8, "threads": 1},
    ATARI: {"kind": "ale", "envs": 8, "threads": 1},
}
"""Gymnasium's own vector environments, and for Atari that of ale_py."""


def make_actor(env: Any) -> Callable[[Array], Array]:  # noqa: ANN401  # either of two
    """Return the exploring policy whose sampling is measured."""
    space, shape = env.single_action_space, env.single_observation_space.shape
    rng = np.random.default_rng(0)
    if isinstance(space, gymnasium.spaces.Discrete):
        n = int(space.n)
        net = pixel_net(n) if len(shape) == 3 else mlp(shape[0], (64, 64), n)

        def choose(obs: Array) -> Array:
            with torch.no_grad():
                best = net(torch.from_numpy(obs).float()).argmax(1).numpy()
            return np.where(rng.random(len(best)) < 0.1, rng.integers(n, size=len(best)), best)

        return choose
    sac = SAC(Sizes(obs=shape[0], actions=space.shape[0], hidden=(64, 64), batch=1), 1e-3)

    def draw(obs: Array) -> Array:
        with torch.no_grad():
            return sac.act(torch.from_numpy(obs).float())[0].numpy()

    return draw


def sampling(asked: Request) -> Work:
    """Write what the policy meets into arrays."""
    env = make_vector(asked.env, asked.settings["kind"], asked.settings["envs"])
    act, n, steps = make_actor(env), int(asked.settings["envs"]), 128
    obs, _ = env.reset(seed=asked.seed)
    kept = [np.zeros((steps, *np.shape(a)), a.dtype) for a in (obs, obs, env.action_space.sample())]
    numbers = np.zeros((steps, 3, n), np.float32)

    def turn() -> int:
        nonlocal obs
        for i in range(steps):
            action = act(obs)
            after, reward, terminated, truncated, _ = env.step(action)
            kept[0][i], kept[1][i], kept[2][i] = obs, after, action
            numbers[i] = reward, terminated, truncated
            obs = after
        return steps * n

    return Work(turn=turn, close=env.close)


def environment(asked: Request) -> Work:
    """Step environments with actions drawn beforehand."""
    n = int(asked.settings["envs"])
    env = make_vector(asked.env, asked.settings["kind"], n)
    env.reset(seed=asked.seed)
    env.action_space.seed(asked.seed)
    return replace(stepping(env.step, env.action_space.sample, n), close=env.close)


def updates(asked: Request) -> Work:
    """Optimise from a full replay."""
    sizes, n_rows = SIZES[asked.stage], asked.settings["rows"]
    replay = Replay(n_rows, sizes, discrete=asked.discrete, seed=asked.seed)
    for name, column in make_rows(sizes, n_rows, discrete=asked.discrete).items():
        replay.columns[name][:] = column
    replay.rows = n_rows
    learner = (DQN if asked.discrete else SAC)(sizes, 3e-4)
    return Work(turn=once(lambda: learner.update(replay.sample(sizes.batch))))


def training(asked: Request) -> Training:
    """Train with one environment."""
    settings = asked.settings
    env = gymnasium.make(asked.env)
    env.action_space.seed(asked.seed)
    obs, actions = {CARTPOLE: (4, 2), PENDULUM: (3, 1)}[asked.env]
    hidden = (settings["hidden"][0], settings["hidden"][1])
    sizes = Sizes(obs=obs, actions=actions, hidden=hidden, batch=settings["batch"])
    replay = Replay(REPLAY_ROWS, sizes, discrete=asked.discrete, seed=asked.seed)
    if asked.discrete:
        learner: DQN | SAC = DQN(sizes, settings["learning_rate"], settings["target_every"])
    else:
        learner = SAC(sizes, settings["learning_rate"], limit=2.0)
    walk = Walk(env, learner, settings, asked.seed)

    def collect() -> int:
        for _ in range(settings["env_steps"]):
            replay.add(**walk.step())
        return int(settings["env_steps"])

    run = by_turns(settings, collect, lambda: learner.update(replay.sample(settings["batch"])))
    return Training(run=run, act=learner.greedy)


class Walk:
    """An exploring policy in one environment."""

    def __init__(
        self,
        env: Any,  # noqa: ANN401  # of any kind
        learner: DQN | SAC,
        settings: Mapping[str, Any],
        seed: int,
    ) -> None:
        self._env = env
        self._learner = learner
        self._settings = settings
        self._rng = np.random.default_rng(seed)
        self._obs = env.reset(seed=seed)[0]
        self._env_steps = 0

    def step(self) -> dict[str, Any]:
        """Take one step and return it."""
        action = self._choose()
        after, reward, terminated, truncated, _ = self._env.step(self._in_its_units(action))
        row = {
            "obs": self._obs,
            "action": action,
            "reward": reward,
            "next_obs": after,
            "terminated": terminated,
        }
        self._obs = self._env.reset()[0] if terminated or truncated else after
        self._env_steps += 1
        return row

    def _choose(self) -> Any:  # noqa: ANN401  # a number or an array
        if isinstance(self._learner, DQN):
            left = 1.0 - self._env_steps / self._settings["decay_env_steps"]
            if self._rng.random() < max(0.04, left):
                return self._env.action_space.sample()
            return self._learner.greedy(self._obs[None])[0]
        if self._env_steps < self._settings["learning_starts"]:
            return self._rng.uniform(-1.0, 1.0, self._env.action_space.shape)
        with torch.no_grad():
            return self._learner.act(torch.from_numpy(self._obs[None]))[0][0].numpy()

    def _in_its_units(self, action: Any) -> Any:  # noqa: ANN401  # the same
        if isinstance(self._learner, DQN):
            return action
        return action * self._env.action_space.high


if __name__ == "__main__":
    measure_once(
        "cleanrl_style",
        torch.__version__,
        __doc__,
        {
            "sampling": Stage(sampling, ENVS),
            "env": Stage(environment, ENVS),
            "updates-sac": Stage(updates, UPDATES),
            "updates-dqn": Stage(updates, UPDATES),
            "score-dqn": Stage(training, ZOO_DQN),
            "score-sac": Stage(training, ZOO_SAC),
        },
    )
