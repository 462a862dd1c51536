"""cpprb: a prioritized replay buffer in C++, and nothing else."""

from __future__ import annotations

import itertools
from importlib.metadata import version

import numpy as np
from cpprb import PrioritizedReplayBuffer

from benchmarks.peers.interface import PER_BATCH, PER_ROWS, SIZES, make_rows, rate, report, request

STAGES = ("per",)


def main() -> None:
    """Sample by priority, set the priorities of what was sampled, and print one JSON line."""
    asked = request(__doc__, {"per": None})
    settings = {"alpha": 0.6, "beta": 0.4, **asked.settings}
    rows = make_rows(SIZES["updates-dqn"], PER_ROWS, discrete=True)
    replay = PrioritizedReplayBuffer(
        PER_ROWS,
        {
            "obs": {"shape": 4},
            "act": {"dtype": np.int64},
            "rew": {},
            "next_obs": {"shape": 4},
            "done": {},
        },
        alpha=settings["alpha"],
    )
    replay.add(
        obs=rows["obs"],
        act=rows["action"],
        rew=rows["reward"],
        next_obs=rows["next_obs"],
        done=rows["terminated"],
    )
    errors = itertools.cycle(np.random.default_rng(0).random((100, PER_BATCH)))

    def turn() -> int:
        batch = replay.sample(PER_BATCH, beta=settings["beta"])
        replay.update_priorities(batch["indexes"], next(errors))
        return 1

    report(
        asked,
        peer="cpprb",
        version=version("cpprb"),
        value=rate(turn, asked.seconds),
        settings=settings,
    )


if __name__ == "__main__":
    main()
