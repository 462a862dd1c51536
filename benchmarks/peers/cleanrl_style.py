"""DQN and SAC in the style of CleanRL: plain loops, no framework.

Shows the cost and the gain of a framework. Needs torch and gymnasium only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812  # the usual name
from torch import Tensor, nn

from benchmarks.peers.interface import (
    ATARI,
    CARTPOLE,
    CHEETAH,
    PIXEL_FEATURES,
    SIZES,
    UPDATES,
    Request,
    Sizes,
    Stage,
    Work,
    convolutions,
    make_rows,
    make_vector,
    measure_once,
    once,
    stepping,
)

Array = npt.NDArray[Any]

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


def mlp(n_inputs: int, hidden: tuple[int, ...], n_outputs: int) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(n_inputs, width), nn.ReLU()]
        n_inputs = width
    return nn.Sequential(*layers, nn.Linear(n_inputs, n_outputs))


def pixel_net(n_outputs: int) -> nn.Sequential:
    """Return the convolutions, then 64x64."""
    return nn.Sequential(*convolutions(), *mlp(PIXEL_FEATURES, (64, 64), n_outputs))


class Replay:
    """A ring of transitions."""

    def __init__(self, capacity: int, sizes: Sizes, *, discrete: bool, seed: int) -> None:
        action: tuple[int, ...] = () if discrete else (sizes.actions,)
        self.columns: dict[str, Array] = {
            "obs": np.zeros((capacity, sizes.obs), np.float32),
            "action": np.zeros((capacity, *action), np.int64 if discrete else np.float32),
            "reward": np.zeros(capacity, np.float32),
            "next_obs": np.zeros((capacity, sizes.obs), np.float32),
            "terminated": np.zeros(capacity, np.float32),
        }
        self.rows = 0
        self._capacity = capacity
        self._rng = np.random.default_rng(seed)

    def sample(self, n: int) -> dict[str, Tensor]:
        """Return n transitions, uniformly."""
        index = self._rng.integers(min(self.rows, self._capacity), size=n)
        return {name: torch.from_numpy(column[index]) for name, column in self.columns.items()}


class DQN:
    """Q-learning with a target network."""

    def __init__(self, sizes: Sizes, learning_rate: float, target_every: int = 500) -> None:
        self.q = mlp(sizes.obs, sizes.hidden, sizes.actions)
        self._target = copy.deepcopy(self.q)
        self._optimizer = torch.optim.Adam(self.q.parameters(), lr=learning_rate)
        self._target_every = target_every
        self._opt_steps = 0

    def update(self, batch: dict[str, Tensor]) -> None:
        """Take one optimisation step."""
        with torch.no_grad():
            best = self._target(batch["next_obs"]).max(1).values
            target = batch["reward"] + 0.99 * (1.0 - batch["terminated"]) * best
        value = self.q(batch["obs"]).gather(1, batch["action"][:, None]).squeeze(1)
        loss = F.smooth_l1_loss(value, target)
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.q.parameters(), 10.0)
        self._optimizer.step()
        self._opt_steps += 1
        if self._opt_steps % self._target_every == 0:
            self._target.load_state_dict(self.q.state_dict())


class SAC:
    """Soft actor-critic with two critics and a learned temperature."""

    def __init__(self, sizes: Sizes, learning_rate: float, limit: float = 1.0) -> None:
        self.actor = mlp(sizes.obs, sizes.hidden, 2 * sizes.actions)
        self._q1 = mlp(sizes.obs + sizes.actions, sizes.hidden, 1)
        self._q2 = mlp(sizes.obs + sizes.actions, sizes.hidden, 1)
        self._targets = [copy.deepcopy(q) for q in (self._q1, self._q2)]
        self._log_alpha = torch.zeros(1, requires_grad=True)
        critics = [*self._q1.parameters(), *self._q2.parameters()]
        self._q_optimizer = torch.optim.Adam(critics, lr=learning_rate)
        self._actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=learning_rate)
        self._alpha_optimizer = torch.optim.Adam([self._log_alpha], lr=learning_rate)
        self._target_entropy = -float(sizes.actions)
        self._limit = limit

    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions between -1 and 1, and the logarithms of their densities."""
        mean, log_std = self.actor(obs).chunk(2, -1)
        std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).exp()
        noise = torch.randn_like(mean)
        raw = mean + std * noise
        log_prob = -0.5 * noise.square() - std.log() - 0.9189385332
        # log(1 - tanh(x)^2), written so that it cannot overflow
        log_prob = log_prob - 2.0 * (0.6931471806 - raw - F.softplus(-2.0 * raw))
        return raw.tanh(), log_prob.sum(-1, keepdim=True)

    def update(self, batch: dict[str, Tensor]) -> None:
        """Take one optimisation step of everything."""
        obs, alpha = batch["obs"], self._log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = self.act(batch["next_obs"])
            both = torch.cat([batch["next_obs"], next_action], 1)
            lower = torch.min(self._targets[0](both), self._targets[1](both))
            soft = lower - alpha * next_log_prob
            not_terminated = 1.0 - batch["terminated"][:, None]
            target = batch["reward"][:, None] + 0.99 * not_terminated * soft
        both = torch.cat([obs, batch["action"]], 1)
        q_loss = F.mse_loss(self._q1(both), target) + F.mse_loss(self._q2(both), target)
        _step(self._q_optimizer, q_loss)
        action, log_prob = self.act(obs)
        both = torch.cat([obs, action], 1)
        value = torch.min(self._q1(both), self._q2(both))
        _step(self._actor_optimizer, (alpha * log_prob - value).mean())
        entropy_gap = (log_prob + self._target_entropy).detach()
        _step(self._alpha_optimizer, -(self._log_alpha.exp() * entropy_gap).mean())
        with torch.no_grad():
            for q, follower in zip((self._q1, self._q2), self._targets, strict=True):
                for new, old in zip(q.parameters(), follower.parameters(), strict=True):
                    old.lerp_(new, 0.005)


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


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
    """Step environments with precomputed random actions."""
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
        },
    )
