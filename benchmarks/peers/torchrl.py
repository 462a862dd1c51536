"""TorchRL: collectors, SAC and DQN losses, replay buffers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torchrl
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

from benchmarks.peers.interface import (
    ATARI,
    CARTPOLE,
    CHEETAH,
    PER,
    PER_BATCH,
    PER_ROWS,
    SIZES,
    UPDATES,
    Request,
    Stage,
    Work,
    make_rows,
    measure_once,
    once,
    prioritizing,
)
from benchmarks.peers.torchrl_parts import Learner, make_envs, make_policy, make_replay, make_td

SAMPLING: dict[str, dict[str, Any]] = {
    CARTPOLE: {"kind": "sync", "envs": 64, "threads": 1},
    CHEETAH: {"kind": "sync", "envs": 16, "threads": 1},
    ATARI: {"kind": "ale", "envs": 16, "threads": 1},
}
ENV: dict[str, dict[str, Any]] = {
    CARTPOLE: {"kind": "serial", "envs": 16, "threads": 1},
    CHEETAH: {"kind": "parallel", "envs": 4, "threads": 1},
    ATARI: {"kind": "parallel", "envs": 4, "threads": 1},
}

TURN_STEPS = 64


def sampling(asked: Request) -> Work:
    """Collect batches of transitions."""
    settings = asked.settings
    make = partial(make_envs, asked.env, settings["kind"], settings["envs"])
    frames, policy = TURN_STEPS * settings["envs"], make_policy(asked.env)
    collector = Collector(make, policy, frames_per_batch=frames, total_frames=-1)
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
    learner = Learner(sizes, discrete=asked.discrete)
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


if __name__ == "__main__":
    measure_once(
        "torchrl",
        torchrl.__version__,
        __doc__,
        {
            "sampling": Stage(sampling, SAMPLING),
            "env": Stage(env, ENV),
            "updates-sac": Stage(updates, UPDATES),
            "updates-dqn": Stage(updates, UPDATES),
            "per": Stage(prioritized, PER),
        },
    )
