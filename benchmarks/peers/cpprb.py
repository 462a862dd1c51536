"""cpprb: a prioritized replay buffer in C++."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
from cpprb import PrioritizedReplayBuffer

from benchmarks.peers.interface import (
    PER_BATCH,
    PER_ROWS,
    SIZES,
    Request,
    Stage,
    Work,
    make_rows,
    measure_once,
    prioritizing,
)


def prioritized(asked: Request) -> Work:
    """Sample by priority, and set the priorities of what was sampled."""
    rows = make_rows(SIZES["updates-dqn"], PER_ROWS, discrete=True)
    columns = {"obs": {"shape": 4}, "act": {"dtype": np.int64}, "next_obs": {"shape": 4}}
    replay = PrioritizedReplayBuffer(
        PER_ROWS, {**columns, "rew": {}, "done": {}}, alpha=asked.settings["alpha"]
    )
    replay.add(
        obs=rows["obs"],
        act=rows["action"],
        rew=rows["reward"],
        next_obs=rows["next_obs"],
        done=rows["terminated"],
    )
    return prioritizing(
        lambda: replay.sample(PER_BATCH, beta=asked.settings["beta"]),
        lambda batch, errors: replay.update_priorities(batch["indexes"], errors),
    )


if __name__ == "__main__":
    settings = {"alpha": 0.6, "beta": 0.4}
    measure_once("cpprb", version("cpprb"), __doc__, {"per": Stage(prioritized, settings)})
