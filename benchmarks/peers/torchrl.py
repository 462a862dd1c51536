"""TorchRL: collectors, SAC and DQN losses, replay buffers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torchrl
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer
from torchrl.envs.utils import ExplorationType
from torchrl.modules import EGreedyModule

from benchmarks.peers.interface import (
    ATARI,
    CARTPOLE,
    CHEETAH,
    PENDULUM,
    PER,
    PER_BATCH,
    PER_ROWS,
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
    measure_once,
    once,
    prioritizing,
)
from benchmarks.peers.torchrl_parts import (
    Learner,
    LearnerConfig,
    make_envs,
    make_greedy_net,
    make_policy,
    make_replay,
    make_td,
)

SAMPLING: dict[str, dict[str, Any]] = {
    CARTPOLE: {"collector": "async", "workers": 2, "kind": "serial", "envs": 16, "threads": 1},
    CHEETAH: {"collector": "async", "workers": 2, "kind": "serial", "envs": 16, "threads": 1},
    ATARI: {"collector": "async", "workers": 2, "kind": "serial", "envs": 16, "threads": 1},
}
ENV: dict[str, dict[str, Any]] = {
    CARTPOLE: {"kind": "serial", "envs": 16, "threads": 1},
    CHEETAH: {"kind": "parallel", "envs": 4, "threads": 1},
    ATARI: {"kind": "parallel", "envs": 4, "threads": 1},
}

TURN_STEPS = 64

LIMITS = {CARTPOLE: 1.0, PENDULUM: 2.0}
"""Bounds of continuous actions."""


def sampling(asked: Request) -> Work:
    """Collect batches of transitions."""
    settings = asked.settings
    make = partial(make_envs, asked.env, settings["kind"], settings["envs"])
    frames, workers = TURN_STEPS * settings["envs"], settings["workers"]
    policy = make_policy(asked.env)
    if settings["collector"] == "single":
        collector = Collector(make, policy, frames_per_batch=frames, total_frames=-1)
    elif settings["collector"] == "sync":
        collector = MultiSyncCollector(
            [make] * workers,
            policy,
            frames_per_batch=frames * workers,
            total_frames=-1,
            cat_results=0,
        )
    else:
        collector = MultiAsyncCollector(
            [make] * workers, policy, frames_per_batch=frames, total_frames=-1
        )
    batches = iter(collector)
    return Work(turn=lambda: int(next(batches).numel()), close=collector.shutdown)


def env(asked: Request) -> Work:
    """Roll out random actions."""
    envs = make_envs(asked.env, asked.settings["kind"], asked.settings["envs"])
    actions = [envs.full_action_spec.rand() for _ in range(TURN_STEPS)]
    state = envs.reset()

    def turn() -> int:
        nonlocal state
        for action in actions:
            _, state = envs.step_and_maybe_reset(state.update(action))
        return TURN_STEPS * int(asked.settings["envs"])

    return Work(turn=turn, close=envs.close)


def updates(asked: Request) -> Work:
    """Optimise from a full replay buffer."""
    sizes, n_rows = SIZES[asked.stage], asked.settings["rows"]
    compiled = asked.settings["compile"]
    learner = Learner(LearnerConfig(sizes=sizes, discrete=asked.discrete, compile=compiled))
    replay = make_replay(n_rows, sizes.batch)
    replay.extend(make_td(make_rows(sizes, n_rows, discrete=asked.discrete)))
    return Work(turn=once(lambda: learner.update(replay.sample())))


def prioritized(asked: Request) -> Work:
    """Sample by priority, and update the sampled priorities."""
    replay = TensorDictPrioritizedReplayBuffer(
        alpha=asked.settings["alpha"],
        beta=asked.settings["beta"],
        storage=LazyTensorStorage(PER_ROWS),
        batch_size=PER_BATCH,
    )
    replay.extend(make_td(make_rows(SIZES["updates-dqn"], PER_ROWS, discrete=True)))
    return prioritizing(
        replay.sample,
        lambda batch, errors: replay.update_priority(batch["index"], torch.from_numpy(errors)),
    )


def training(asked: Request) -> Training:
    """Train with one environment."""
    settings, limit = asked.settings, LIMITS[asked.env]
    obs, actions = {CARTPOLE: (4, 2), PENDULUM: (3, 1)}[asked.env]
    hidden = (settings["hidden"][0], settings["hidden"][1])
    learner = Learner(
        LearnerConfig(
            sizes=Sizes(obs=obs, actions=actions, hidden=hidden, batch=settings["batch"]),
            discrete=asked.discrete,
            learning_rate=settings["learning_rate"],
            target_every=settings.get("target_every", 1),
            action_limit=limit,
        )
    )
    replay = make_replay(REPLAY_ROWS, settings["batch"])
    explore = EGreedyModule(
        learner.spec, annealing_num_steps=settings.get("decay_env_steps", 1), eps_end=0.04
    )
    collector = Collector(
        partial(make_envs, asked.env, "serial", 1),
        TensorDictSequential(learner.actor, explore) if asked.discrete else learner.actor,
        frames_per_batch=settings["env_steps"],
        total_frames=-1,
        init_random_frames=settings["learning_starts"],
        exploration_type=ExplorationType.RANDOM,
    )
    batches = iter(collector)

    def collect() -> int:
        batch = next(batches)
        replay.extend(batch.reshape(-1).exclude("collector"))
        explore.step(batch.numel())
        return int(batch.numel())

    run = by_turns(settings, collect, lambda: learner.update(replay.sample()))
    return Training(run=run, act=make_greedy_net(learner, limit))


if __name__ == "__main__":
    compiling = {**UPDATES, "compile": False}
    measure_once(
        "torchrl",
        torchrl.__version__,
        __doc__,
        {
            "sampling": Stage(sampling, SAMPLING),
            "env": Stage(env, ENV),
            "updates-sac": Stage(updates, compiling),
            "updates-dqn": Stage(updates, compiling),
            "per": Stage(prioritized, PER),
            "score-dqn": Stage(training, ZOO_DQN),
            "score-sac": Stage(training, {**ZOO_SAC, "learning_starts": 200}),
        },
    )
