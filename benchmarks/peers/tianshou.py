"""Tianshou: collectors, SAC and DQN, prioritized replay."""

from __future__ import annotations

import itertools
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import torch
from tianshou.data import Collector, PrioritizedReplayBuffer, VectorReplayBuffer
from tianshou.utils.torch_utils import policy_within_training_step

from benchmarks.peers.interface import (
    ATARI,
    CARTPOLE,
    CHEETAH,
    PER_BATCH,
    PER_ROWS,
    REPLAY_ROWS,
    SIZES,
    Request,
    make_rows,
    measure_once,
    rate,
    report,
)
from benchmarks.peers.race import GOALS, Race
from benchmarks.peers.tianshou_parts import (
    DQNParts,
    PixelNet,
    SACParts,
    make_buffer,
    make_envs,
    spaces_of,
)

SAMPLING: dict[str, dict[str, Any]] = {
    CARTPOLE: {"kind": "dummy", "envs": 64, "rows": 65_536, "threads": 1},
    CHEETAH: {"kind": "shmem", "envs": 16, "rows": 65_536, "threads": 1},
    ATARI: {"kind": "shmem", "envs": 8, "rows": 8_192, "threads": 1},
}
ENV: dict[str, dict[str, Any]] = {
    CARTPOLE: {"kind": "dummy", "envs": 64, "threads": 1},
    CHEETAH: {"kind": "shmem", "envs": 16, "threads": 1},
    ATARI: {"kind": "shmem", "envs": 8, "threads": 1},
}

DQN_SETTINGS: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch": 64,
    "hidden": [256, 256],
    # As Stable-Baselines3 comes to: every 10 environment steps, none of them between updates.
    "target_every": 128,
    "double": False,
    "n_step": 1,
    "gamma": 0.99,
    "learning_starts": 1000,
    "envs": 1,
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
    "envs": 1,
    "env_steps": 1,
    "opt_steps": 1,
    "threads": 2,
}
"""Those that Stable-Baselines3 is tuned with: better than the examples' own."""

TURN_STEPS = 32


def sampling(asked: Request) -> None:
    """Collect into a replay buffer."""
    settings = {**SAMPLING[asked.env], **asked.settings}
    torch.set_num_threads(asked.threads or settings["threads"])
    torch.manual_seed(asked.seed)
    observations, actions = spaces_of(asked.env)
    if isinstance(actions, gymnasium.spaces.Discrete):
        parts = DQNParts(observations=observations, actions=actions, hidden=(64, 64))
        algorithm = parts.build(PixelNet(int(actions.n)) if asked.env == ATARI else None)
    else:
        algorithm = SACParts(observations=observations, actions=actions, hidden=(64, 64)).build()
    n = settings["envs"]
    collector = Collector(
        algorithm,
        make_envs(asked.env, settings["kind"], n),
        VectorReplayBuffer(settings["rows"], n),
        exploration_noise=True,
    )
    collector.reset()

    def turn() -> int:
        return int(collector.collect(n_step=TURN_STEPS * n).n_collected_steps)

    with policy_within_training_step(algorithm.policy):
        value = rate(turn, asked.seconds)
    collector.close()
    _report(asked, value, settings)


def env(asked: Request) -> None:
    """Step environments with actions drawn beforehand."""
    settings = {**ENV[asked.env], **asked.settings}
    n = int(settings["envs"])
    envs = make_envs(asked.env, settings["kind"], n)
    _, space = spaces_of(asked.env)
    space.seed(asked.seed)
    actions = [np.array([space.sample() for _ in range(n)]) for _ in range(100)]

    def turn() -> int:
        for action in actions:
            _, _, terminated, truncated, _ = envs.step(action)
            ended = np.flatnonzero(terminated | truncated)
            if len(ended):
                envs.reset(ended)
        return len(actions) * n

    envs.reset()
    value = rate(turn, asked.seconds)
    envs.close()
    _report(asked, value, settings)


def updates(asked: Request) -> None:
    """Optimise from a full replay buffer."""
    sizes, discrete = SIZES[asked.stage], asked.stage == "updates-dqn"
    settings = {"threads": asked.threads or 1, "rows": REPLAY_ROWS, **asked.settings}
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(asked.seed)
    observations = gymnasium.spaces.Box(-np.inf, np.inf, (sizes.obs,), np.float32)
    if discrete:
        choices = gymnasium.spaces.Discrete(sizes.actions)
        algorithm: Any = DQNParts(
            observations=observations, actions=choices, hidden=sizes.hidden
        ).build()
    else:
        box = gymnasium.spaces.Box(-1.0, 1.0, (sizes.actions,), np.float32)
        algorithm = SACParts(observations=observations, actions=box, hidden=sizes.hidden).build()
    buffer = make_buffer(make_rows(sizes, settings["rows"], discrete=discrete))

    def turn() -> int:
        algorithm.update(buffer, sizes.batch)
        return 1

    with policy_within_training_step(algorithm.policy):
        _report(asked, rate(turn, asked.seconds), settings)


def prioritized(asked: Request) -> None:
    """Sample by priority, and set the priorities of what was sampled."""
    settings = {"alpha": 0.6, "beta": 0.4, **asked.settings}
    replay = PrioritizedReplayBuffer(PER_ROWS, alpha=settings["alpha"], beta=settings["beta"])
    replay.update(make_buffer(make_rows(SIZES["updates-dqn"], PER_ROWS, discrete=True)))
    errors = itertools.cycle(np.random.default_rng(0).random((100, PER_BATCH)))

    def turn() -> int:
        _, index = replay.sample(PER_BATCH)
        replay.update_weight(index, next(errors))
        return 1

    _report(asked, rate(turn, asked.seconds), settings)


def score(asked: Request) -> None:
    """Train until the score is reached."""
    goal, discrete = GOALS[asked.stage], asked.stage == "score-dqn"
    settings = {**(DQN_SETTINGS if discrete else SAC_SETTINGS), **asked.settings}
    torch.set_num_threads(asked.threads or settings["threads"])
    torch.manual_seed(asked.seed)
    np.random.seed(asked.seed)  # noqa: NPY002  # where Tianshou draws from
    observations, actions = spaces_of(goal.env)
    parts = {"observations": observations, "actions": actions, "hidden": settings["hidden"]}
    parts["learning_rate"] = settings["learning_rate"]
    if discrete:
        of_dqn = {name: settings[name] for name in ("target_every", "double", "n_step", "gamma")}
        algorithm: Any = DQNParts(**parts, **of_dqn).build()
    else:
        algorithm = SACParts(**parts).build()
    buffer = VectorReplayBuffer(REPLAY_ROWS, settings["envs"])
    collector = Collector(
        algorithm, make_envs(goal.env, "dummy", settings["envs"]), buffer, exploration_noise=True
    )
    race = Race(goal, asked.seconds)
    collector.reset()
    collector.collect(n_step=settings["learning_starts"], random=True)
    env_steps, opt_steps = settings["learning_starts"], 0
    while not race.over(_greedy(algorithm, discrete=discrete), opt_steps):
        if discrete:
            left = 1.0 - env_steps / settings["decay_env_steps"]
            algorithm.policy.set_eps_training(max(0.04, left))
        with policy_within_training_step(algorithm.policy):
            collector.collect(n_step=settings["env_steps"])
            env_steps += settings["env_steps"]
            for _ in range(settings["opt_steps"]):
                algorithm.update(buffer, settings["batch"])
                opt_steps += 1
    report(
        asked,
        peer="tianshou",
        version=version("tianshou"),
        value=race.seconds,
        settings=settings,
        note=race.note(),
        details=race.details(env_steps, opt_steps),
    )


def _greedy(algorithm: Any, *, discrete: bool) -> Any:  # noqa: ANN401  # untyped where checked
    model = algorithm.policy.model if discrete else algorithm.policy.actor

    def act(obs: Any) -> Any:  # noqa: ANN401  # the same
        with torch.no_grad():
            out = model(obs)[0]
        if discrete:
            return out.argmax(-1).numpy()
        return algorithm.policy.map_action(out[0].tanh().numpy())

    return act


def _report(asked: Request, value: float, settings: dict[str, Any]) -> None:
    report(asked, peer="tianshou", version=version("tianshou"), value=value, settings=settings)


STAGES = {
    "sampling": sampling,
    "env": env,
    "updates-sac": updates,
    "updates-dqn": updates,
    "per": prioritized,
    "score-dqn": score,
    "score-sac": score,
}


if __name__ == "__main__":
    measure_once(__doc__, STAGES)
