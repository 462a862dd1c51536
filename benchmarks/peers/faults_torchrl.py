"""TorchRL: DQN on batches of its asynchronous collector with two worker processes.

The workers read the learner's weights from the memory that they share: `update_policy_weights_`
would wait forever for the answer of a worker that is gone.

Careful: it checks for NaN, and waits 10 s for workers instead of forever.
"""

from __future__ import annotations

import os
from functools import partial
from importlib.metadata import version
from typing import Any

import torch

from benchmarks.peers.faulty import FOREVER, Run, is_finite, running

FRAMES = 64
BATCH = 64
OPT_STEPS = 2
"""Optimisation steps after each collected batch."""

WAITS = {"MAX_IDLE_COUNT": "10"}
"""Seconds, from an environment variable that TorchRL reads on import."""


def make_wrapped(run: Run) -> Any:  # noqa: ANN401  # untyped where this is checked
    """Return the environment as TorchRL's."""
    from torchrl.envs import (  # noqa: PLC0415  # after the wait is set
        FiniteTensorDictCheck,
        GymWrapper,
        TransformedEnv,
    )

    env = GymWrapper(run.make_env(), categorical_action_encoding=True)
    return TransformedEnv(env, FiniteTensorDictCheck()) if run.careful else env


def bad_rows(batch: Any) -> int:  # noqa: ANN401  # see above
    """Count the rows with a NaN or infinite value."""
    after = batch["next"]
    columns = (batch["observation"], after["observation"], after["reward"])
    bad = [~torch.isfinite(column).all(-1) for column in columns]
    return int(torch.stack(bad).any(0).sum())


def train(run: Run) -> None:
    """Train until asked to stop."""
    from tensordict.nn import TensorDictSequential  # noqa: PLC0415  # see above
    from torchrl.collectors import MultiAsyncCollector  # noqa: PLC0415
    from torchrl.modules import EGreedyModule  # noqa: PLC0415

    from benchmarks.peers.interface import Sizes  # noqa: PLC0415
    from benchmarks.peers.torchrl_parts import Learner, LearnerConfig, make_replay  # noqa: PLC0415

    sizes = Sizes(obs=4, actions=2, hidden=(64, 64), batch=BATCH)
    learner = Learner(LearnerConfig(sizes=sizes, discrete=True))
    explore = EGreedyModule(learner.spec, eps_init=0.1, eps_end=0.1)
    replay = make_replay(10_000, BATCH)
    collector = MultiAsyncCollector(
        [partial(make_wrapped, run)] * 2,
        TensorDictSequential(learner.actor, explore),
        frames_per_batch=FRAMES,
        total_frames=FOREVER,
    )
    received = bad = 0
    for learned, batch in enumerate(collector, 1):
        received += batch.numel()
        bad += bad_rows(batch)
        replay.extend(batch.reshape(-1).exclude("collector"))
        for _ in range(OPT_STEPS):
            learner.update(replay.sample())
        run.progress(
            learned=learned,
            received=received,
            bad_rows=bad,
            bad_params=not all(is_finite(array.detach()) for array in learner.body.parameters()),
        )
        if run.asked("stop"):
            break
    collector.shutdown()


def main() -> None:
    """Run once."""
    torch.set_num_threads(1)
    with running(__doc__, version("torchrl")) as run:
        if run.careful:
            os.environ.update(WAITS)
        train(run)


if __name__ == "__main__":
    main()
