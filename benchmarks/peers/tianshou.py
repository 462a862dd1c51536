"""Tianshou: collectors, prioritized replay, DQN, PPO, SAC and TD3.

They train with the settings that Stable-Baselines3 is tuned with, which are better than its
examples' own; PPO's learning rate and clipping range stay as they are at the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
    PER,
    PER_BATCH,
    PER_ROWS,
    REPLAY_ROWS,
    SIZES,
    UPDATES,
    ZOO_DQN,
    ZOO_SAC,
    Request,
    Stage,
    Training,
    Work,
    by_turns,
    make_rows,
    measure_once,
    once,
    prioritizing,
    stepping,
)
from benchmarks.peers.tianshou_parts import (
    DQNParts,
    PixelNet,
    SACParts,
    make_buffer,
    make_envs,
    make_ppo,
    make_td3,
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

DQN_SETTINGS = {**ZOO_DQN, "double": False, "n_step": 1, "gamma": 0.99}
PPO_SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "clip_range": 0.2,
    "envs": 8,
    "env_steps": 256,
    "batch": 256,
    "epochs": 20,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "ent_coef": 0.0,
    "max_grad_norm": 0.5,
    "hidden": [64, 64],
    "threads": 1,
}
TD3_SETTINGS: dict[str, Any] = {
    **ZOO_SAC,
    "hidden": [400, 300],
    "gamma": 0.98,
    "noise_std": 0.1,
    "learning_starts": 10_000,
}
TURN_STEPS = 32


def sampling(asked: Request) -> Work:
    """Collect into a replay buffer."""
    observations, actions = spaces_of(asked.env)
    if isinstance(actions, gymnasium.spaces.Discrete):
        parts = DQNParts(observations=observations, actions=actions, hidden=(64, 64))
        algorithm = parts.build(PixelNet(int(actions.n)) if asked.env == ATARI else None)
    else:
        algorithm = SACParts(observations=observations, actions=actions, hidden=(64, 64)).build()
    n = asked.settings["envs"]
    collector = Collector(
        algorithm,
        make_envs(asked.env, asked.settings["kind"], n),
        VectorReplayBuffer(asked.settings["rows"], n),
        exploration_noise=True,
    )
    collector.reset()
    collect = _training_step(algorithm, lambda: collector.collect(n_step=TURN_STEPS * n))
    return Work(turn=lambda: int(collect().n_collected_steps), close=collector.close)


def env(asked: Request) -> Work:
    """Step environments with actions drawn beforehand."""
    n = int(asked.settings["envs"])
    envs = make_envs(asked.env, asked.settings["kind"], n)
    _, space = spaces_of(asked.env)
    space.seed(asked.seed)
    envs.reset()

    def step(action: Any) -> None:  # noqa: ANN401  # an array
        _, _, terminated, truncated, _ = envs.step(action)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            envs.reset(ended)

    return replace(
        stepping(step, lambda: np.array([space.sample() for _ in range(n)]), n), close=envs.close
    )


def updates(asked: Request) -> Work:
    """Optimise from a full replay buffer."""
    sizes = SIZES[asked.stage]
    observations = gymnasium.spaces.Box(-np.inf, np.inf, (sizes.obs,), np.float32)
    if asked.discrete:
        choices = gymnasium.spaces.Discrete(sizes.actions)
        algorithm: Any = DQNParts(
            observations=observations, actions=choices, hidden=sizes.hidden
        ).build()
    else:
        box = gymnasium.spaces.Box(-1.0, 1.0, (sizes.actions,), np.float32)
        algorithm = SACParts(observations=observations, actions=box, hidden=sizes.hidden).build()
    buffer = make_buffer(make_rows(sizes, asked.settings["rows"], discrete=asked.discrete))
    return Work(turn=once(_training_step(algorithm, lambda: algorithm.update(buffer, sizes.batch))))


def prioritized(asked: Request) -> Work:
    """Sample by priority, and set the priorities of what was sampled."""
    replay = PrioritizedReplayBuffer(
        PER_ROWS, alpha=asked.settings["alpha"], beta=asked.settings["beta"]
    )
    replay.update(make_buffer(make_rows(SIZES["updates-dqn"], PER_ROWS, discrete=True)))
    return prioritizing(
        lambda: replay.sample(PER_BATCH),
        lambda sampled, errors: replay.update_weight(sampled[1], errors),
    )


def off_policy(asked: Request) -> Training:
    """Train DQN, SAC or TD3 with one environment."""
    settings = asked.settings
    observations, actions = spaces_of(asked.env)
    parts = {"observations": observations, "actions": actions, "hidden": settings["hidden"]}
    parts["learning_rate"] = settings["learning_rate"]
    if asked.discrete:
        of_dqn = {name: settings[name] for name in ("target_every", "double", "n_step", "gamma")}
        algorithm: Any = DQNParts(**parts, **of_dqn).build()
    elif asked.stage == "score-td3":
        algorithm = make_td3(observations, actions, settings)
    else:
        algorithm = SACParts(**parts).build()
    envs = make_envs(asked.env, "dummy", 1)
    envs.seed(asked.seed)
    buffer = VectorReplayBuffer(REPLAY_ROWS, 1)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    made = 0

    def collect() -> int:
        nonlocal made
        before = made
        if not made:
            collector.reset()
            collector.collect(n_step=settings["learning_starts"], random=True)
            made = settings["learning_starts"]
        if asked.discrete:
            left = 1.0 - made / settings["decay_env_steps"]
            algorithm.policy.set_eps_training(max(0.04, left))
        collector.collect(n_step=settings["env_steps"])
        made += settings["env_steps"]
        return int(made - before)

    run = by_turns(
        settings,
        _training_step(algorithm, collect),
        _training_step(algorithm, lambda: algorithm.update(buffer, settings["batch"])),
    )
    return Training(run=run, act=_greedy(algorithm, asked.stage))


def on_policy(asked: Request) -> Training:
    """Train PPO."""
    settings = asked.settings
    algorithm = make_ppo(*spaces_of(asked.env), settings)
    buffer = VectorReplayBuffer(4 * settings["env_steps"], settings["envs"])
    collector = Collector(algorithm, make_envs(asked.env, "dummy", settings["envs"]), buffer)

    def learn() -> int:
        steps = int(collector.collect(n_step=settings["env_steps"]).n_collected_steps)
        algorithm.update(buffer, settings["batch"], settings["epochs"])
        return steps

    turn = _training_step(algorithm, learn)

    def run(over: Callable[[int, int], bool], env_steps: int) -> None:
        collector.reset()
        made = learned = 0
        while not over(made, learned) and not 0 < env_steps <= made:
            made += turn()
            learned += settings["epochs"]
            collector.reset_buffer(keep_statistics=True)

    return Training(run=run, act=_greedy(algorithm, asked.stage))


def _training_step(algorithm: Any, work: Callable[[], Any]) -> Callable[[], Any]:  # noqa: ANN401
    """Do it as the library's own trainers do."""

    def turn() -> Any:  # noqa: ANN401  # whatever it returns
        with policy_within_training_step(algorithm.policy):
            return work()

    return turn


def _greedy(algorithm: Any, stage: str) -> Any:  # noqa: ANN401  # untyped where checked
    policy = algorithm.policy

    def act(obs: Any) -> Any:  # noqa: ANN401  # the same
        with torch.no_grad():
            match stage:
                case "score-dqn":
                    return policy.model(obs)[0].argmax(-1).numpy()
                case "score-ppo":
                    return policy.actor(obs)[0].argmax(-1).numpy()
                case "score-td3":
                    return policy.map_action(policy.actor(obs)[0].numpy())
                case _:
                    return policy.map_action(policy.actor(obs)[0][0].tanh().numpy())

    return act


if __name__ == "__main__":
    measure_once(
        "tianshou",
        version("tianshou"),
        __doc__,
        {
            "sampling": Stage(sampling, SAMPLING),
            "env": Stage(env, ENV),
            "updates-sac": Stage(updates, UPDATES),
            "updates-dqn": Stage(updates, UPDATES),
            "per": Stage(prioritized, PER),
            "score-dqn": Stage(off_policy, DQN_SETTINGS),
            "score-sac": Stage(off_policy, ZOO_SAC),
            "score-td3": Stage(off_policy, TD3_SETTINGS),
            "score-ppo": Stage(on_policy, PPO_SETTINGS),
        },
    )
