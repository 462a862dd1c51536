"""asyncrl's own side of the comparison with peers, measured and printed as theirs is.

python -m benchmarks.ours STAGE [--env ID] [--seconds S] [--seed N] [--threads N]
"""

from __future__ import annotations

import itertools
import multiprocessing
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from asyncrl.bench.load import Load, made_up_experience
from asyncrl.bench.stage_env import EnvStage
from asyncrl.bench.stage_learner import LearnerStage, filled
from asyncrl.bench.stage_runs import SampleStage
from asyncrl.bench.workload import Workload
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from benchmarks.peers.interface import (
    ATARI,
    CARTPOLE,
    CHEETAH,
    PER_BATCH,
    PER_ROWS,
    REPLAY_ROWS,
    SIZES,
    Request,
    measure_once,
    rate,
    report,
)
from benchmarks.speed.learner import PEERS_DQN
from benchmarks.speed.race import TASKS, train_ours

ENVS_PER_ACTOR = {CARTPOLE: 256, CHEETAH: 16, ATARI: 16}
"""Of two actors, fastest on two cores of 8 to 256."""

SEGMENT_LENGTH = 64

FILL_SEGMENTS = 64


def sampling(asked: Request) -> None:
    """Let two actors fill the replay."""
    settings = {
        "actors": 2,
        "envs_per_actor": ENVS_PER_ACTOR[asked.env],
        "segment_length": SEGMENT_LENGTH,
        **asked.settings,
    }
    workload = Workload(env=asked.env, seconds=asked.seconds, **settings)
    with closing(SampleStage(Load.of(workload))) as stage:
        (value,) = stage.measure_value()
    _report(asked, value, settings)


def env(asked: Request) -> None:
    """Step environments with random actions, in one process on each core."""
    settings = {"processes": 2, "envs": ENVS_PER_ACTOR[asked.env], **asked.settings}
    workload = Workload(env=asked.env, envs_per_actor=settings["envs"], seconds=asked.seconds)
    n = settings["processes"]
    with multiprocessing.get_context("spawn").Pool(n) as pool:
        values = pool.map(_step_envs, [workload] * n, chunksize=1)
    _report(asked, sum(values), settings)


def updates(asked: Request) -> None:
    """Optimise from a full replay buffer."""
    sizes = SIZES[asked.stage]
    settings = {"threads": asked.threads or 1, "rows": REPLAY_ROWS, **asked.settings}
    torch.set_num_threads(settings["threads"])
    workload = Workload(
        env=asked.env,
        hidden=sizes.hidden,
        batch_size=sizes.batch,
        capacity=settings["rows"],
        seconds=asked.seconds,
    )
    load = Load.of(workload)
    if asked.stage == "updates-dqn":
        load = replace(load, agent=PEERS_DQN)
    with closing(LearnerStage(load)) as stage:
        (value,) = stage.measure_value()
    _report(asked, value, settings)


def prioritized(asked: Request) -> None:
    """Sample by priority, and set the priorities of what was sampled."""
    config = PrioritizedReplayConfig(capacity=PER_ROWS)
    load = Load.of(Workload(env=asked.env, capacity=PER_ROWS, batch_size=PER_BATCH))
    replay: Any = filled(
        config, load.schema, made_up_experience(load.schema, load.spec, FILL_SEGMENTS)
    )
    rng = np.random.default_rng(0)
    errors = itertools.cycle(rng.random((100, PER_BATCH)).astype(np.float32))

    def turn() -> int:
        batch = replay.sample(PER_BATCH)
        replay.update_priorities(batch["index"], next(errors))
        return 1

    _report(asked, rate(turn, asked.seconds), {"alpha": config.alpha, "beta": config.beta})


def score(asked: Request) -> None:
    """Train with the command line until its evaluator sees the score."""
    task = TASKS["cartpole-dqn" if asked.stage == "score-dqn" else "pendulum-sac"]
    run = train_ours(task, asked.seed, asked.seconds, [])
    seconds = run["seconds"]
    note = ""
    if seconds is None:
        note = f"not at {task.score:g} within {asked.seconds:g} s; the last was {run['last_score']}"
    _report(asked, seconds, {}, note, {k: v for k, v in run.items() if k != "seconds"})


def _step_envs(workload: Workload) -> float:
    with closing(EnvStage(Load.of(workload))) as stage:
        return stage.measure_value()[0]


def _report(
    asked: Request,
    value: float | None,
    settings: dict[str, Any],
    note: str = "",
    details: dict[str, Any] | None = None,
) -> None:
    report(
        asked,
        peer="asyncrl",
        version=version("asyncrl"),
        value=value,
        settings=settings,
        note=note,
        details=details,
    )


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
