"""DQN and SAC in the manner of CleanRL: loops by hand, no framework.

Shows what a framework costs and what it is worth. Runs wherever torch and gymnasium are.
"""

from __future__ import annotations

from collections.abc import Callable
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
    Request,
    Sizes,
    make_rows,
    make_vector,
    measure_once,
    rate,
    report,
)
from benchmarks.peers.race import GOALS, Race

SAMPLING: dict[str, dict[str, Any]] = {
    CARTPOLE: {"kind": "sync", "envs": 64, "threads": 1},
    CHEETAH: {"kind": "async", "envs": 8, "threads": 1},
    ATARI: {"kind": "ale", "envs": 8, "threads": 1},
}
ENV: dict[str, dict[str, Any]] = SAMPLING
"""Gymnasium's own vector environments, and for Atari that of ale_py."""

DQN_SETTINGS: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch": 64,
    "hidden": [256, 256],
    # As Stable-Baselines3 comes to: every 10 environment steps, none of them between updates.
    "target_every": 128,
    "learning_starts": 1000,
    "env_steps": 256,
    "opt_steps": 128,
    "decay_env_steps": 8000,
    "threads": 1,
}
SAC_SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "batch": 256,
    "hidden": [256, 256],
    "learning_starts": 100,
    "env_steps": 1,
    "opt_steps": 1,
    "threads": 2,
}
"""Those that Stable-Baselines3 is tuned with."""


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


def sampling(asked: Request) -> None:
    """Write what the policy meets into arrays."""
    settings = {**SAMPLING[asked.env], **asked.settings}
    torch.set_num_threads(asked.threads or settings["threads"])
    env = make_vector(asked.env, settings["kind"], settings["envs"])
    act, n, steps = make_actor(env), int(settings["envs"]), 128
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

    value = rate(turn, asked.seconds)
    env.close()
    _report(asked, value, settings)


def environment(asked: Request) -> None:
    """Step environments with actions drawn beforehand."""
    settings = {**ENV[asked.env], **asked.settings}
    env = make_vector(asked.env, settings["kind"], settings["envs"])
    env.reset(seed=asked.seed)
    env.action_space.seed(asked.seed)
    actions = [env.action_space.sample() for _ in range(100)]

    def turn() -> int:
        for action in actions:
            env.step(action)
        return len(actions) * int(settings["envs"])

    value = rate(turn, asked.seconds)
    env.close()
    _report(asked, value, settings)


def updates(asked: Request) -> None:
    """Optimise from a full replay."""
    sizes, discrete = SIZES[asked.stage], asked.stage == "updates-dqn"
    settings = {"threads": asked.threads or 1, "rows": REPLAY_ROWS, **asked.settings}
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(asked.seed)
    replay = Replay(settings["rows"], sizes, discrete=discrete, seed=asked.seed)
    for name, column in make_rows(sizes, settings["rows"], discrete=discrete).items():
        replay.columns[name][:] = column
    replay.rows = settings["rows"]
    learner = (DQN if discrete else SAC)(sizes, 3e-4)

    def turn() -> int:
        learner.update(replay.sample(sizes.batch))
        return 1

    _report(asked, rate(turn, asked.seconds), settings)


def score(asked: Request) -> None:
    """Train with one environment until the score is reached."""
    goal, discrete = GOALS[asked.stage], asked.stage == "score-dqn"
    settings = {**(DQN_SETTINGS if discrete else SAC_SETTINGS), **asked.settings}
    torch.set_num_threads(asked.threads or settings["threads"])
    torch.manual_seed(asked.seed)
    env = gymnasium.make(goal.env)
    env.action_space.seed(asked.seed)
    obs, actions = {CARTPOLE: (4, 2), PENDULUM: (3, 1)}[goal.env]
    hidden = (settings["hidden"][0], settings["hidden"][1])
    sizes = Sizes(obs=obs, actions=actions, hidden=hidden, batch=settings["batch"])
    replay = Replay(REPLAY_ROWS, sizes, discrete=discrete, seed=asked.seed)
    if discrete:
        learner: DQN | SAC = DQN(sizes, settings["learning_rate"], settings["target_every"])
    else:
        learner = SAC(sizes, settings["learning_rate"], limit=2.0)
    walk = Walk(env, learner, settings, asked.seed)
    race = Race(goal, asked.seconds)
    opt_steps = 0
    while not race.over(learner.greedy, opt_steps):
        for _ in range(settings["env_steps"]):
            replay.add(**walk.step())
        if replay.rows < settings["learning_starts"]:
            continue
        for _ in range(settings["opt_steps"]):
            learner.update(replay.sample(settings["batch"]))
            opt_steps += 1
    report(
        asked,
        peer="cleanrl_style",
        version=torch.__version__,
        value=race.seconds,
        settings=settings,
        note=race.note(),
        details=race.details(replay.rows, opt_steps),
    )


class Walk:
    """An exploring policy in one environment."""

    def __init__(
        self,
        env: Any,  # noqa: ANN401  # of any kind
        learner: DQN | SAC,
        settings: dict[str, Any],
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


def _report(asked: Request, value: float, settings: dict[str, Any]) -> None:
    report(asked, peer="cleanrl_style", version=torch.__version__, value=value, settings=settings)


STAGES = {
    "sampling": sampling,
    "env": environment,
    "updates-sac": updates,
    "updates-dqn": updates,
    "score-dqn": score,
    "score-sac": score,
}


if __name__ == "__main__":
    measure_once(__doc__, STAGES)
