"""asyncrl's side of the comparison with peers, measured and printed in the same way.

python -m benchmarks.peers.ours STAGE [--env ID] [--seconds S] [--seed N] [--threads N]
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.tools.bench.load import Load, synthetic_experience
from asyncrl.tools.bench.stage_env import env_stage
from asyncrl.tools.bench.stage_learner import filled, learner_stage
from asyncrl.tools.bench.stage_runs import sample_stage
from asyncrl.tools.bench.workload import Workload
from benchmarks.peers.interface import (
    ATARI,
    CARTPOLE,
    CHEETAH,
    PER_BATCH,
    PER_ROWS,
    SIZES,
    UPDATES,
    Request,
    Stage,
    Work,
    measure_once,
    prioritizing,
)
from benchmarks.speed.learner import PEERS_DQN

ENVS = {CARTPOLE: 256, CHEETAH: 16, ATARI: 16}
"""Environments of each of two actors: the fastest of 8 to 256 on two cores."""

SAMPLING = {
    env: {"actors": 2, "envs_per_actor": n, "segment_length": 64} for env, n in ENVS.items()
}
ENV = {env: {"processes": 2, "envs": n} for env, n in ENVS.items()}

FILL_SEGMENTS = 64

Result = Mapping[str, Any]


def sampling(asked: Request) -> Result:
    """Let two actors fill the replay."""
    workload = Workload(env=asked.env, seconds=asked.seconds, **asked.settings)
    with closing(sample_stage(Load.of(workload))) as stage:
        return {"value": stage.value()[0]}


def env(asked: Request) -> Result:
    """Step environments with random actions, in one process on each core."""
    envs, n = asked.settings["envs"], asked.settings["processes"]
    workload = Workload(env=asked.env, envs_per_actor=envs, seconds=asked.seconds)
    with multiprocessing.get_context("spawn").Pool(n) as pool:
        return {"value": sum(pool.map(_step_envs, [workload] * n, chunksize=1))}


def updates(asked: Request) -> Result:
    """Optimise from a full replay buffer."""
    sizes = SIZES[asked.stage]
    workload = Workload(
        env=asked.env,
        hidden=sizes.hidden,
        batch_size=sizes.batch,
        capacity=asked.settings["rows"],
        seconds=asked.seconds,
    )
    load = Load.of(workload)
    if asked.discrete:
        load = replace(load, agent=PEERS_DQN)
    with closing(learner_stage(load)) as stage:
        return {"value": stage.value()[0]}


def prioritized(asked: Request) -> Work:
    """Sample by priority, and set the priorities of what was sampled."""
    load = Load.of(Workload(env=asked.env, capacity=PER_ROWS, batch_size=PER_BATCH))
    message = synthetic_experience(load.schema, load.spec, FILL_SEGMENTS)
    replay: Any = filled(PrioritizedReplayConfig(capacity=PER_ROWS), load.schema, message)
    return prioritizing(
        lambda: replay.sample(PER_BATCH),
        lambda batch, errors: replay.update_priorities(batch["index"], errors),
    )


def _step_envs(workload: Workload) -> float:
    with closing(env_stage(Load.of(workload))) as stage:
        return stage.value()[0]


if __name__ == "__main__":
    of_replay = PrioritizedReplayConfig(capacity=PER_ROWS)
    measure_once(
        "asyncrl",
        version("asyncrl"),
        __doc__,
        {
            "sampling": Stage(sampling, SAMPLING),
            "env": Stage(env, ENV),
            "updates-sac": Stage(updates, UPDATES),
            "updates-dqn": Stage(updates, UPDATES),
            "per": Stage(prioritized, {"alpha": of_replay.alpha, "beta": of_replay.beta}),
        },
    )
