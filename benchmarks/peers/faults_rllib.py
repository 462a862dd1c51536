"""RLlib's new API stack: PPO or IMPALA with two environment runners.

Restarts failed runners, which is the default. Careful: samples and probes may take 10 s, restarts
are not delayed, and a runner whose environment fails makes a new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import ray  # type: ignore[import-not-found]  # in the peer's environment alone
import torch
from ray.rllib.algorithms.impala import IMPALAConfig  # type: ignore[import-not-found]
from ray.rllib.algorithms.ppo import PPOConfig  # type: ignore[import-not-found]
from ray.rllib.core.rl_module.default_model_config import (  # type: ignore[import-not-found]
    DefaultModelConfig,
)
from ray.tune.registry import register_env  # type: ignore[import-not-found]

from benchmarks.peers.faulty import Run, is_finite, running

ENV = "Faulty"
STORE_BYTES = 300 * 2**20
LOGICAL_CPUS = 8
"""More than there are CPUs, so that no actor waits for one."""

DELAY_S = 1.0
DEADLINE_S = 10.0


def note_bad_rows(run: Run, *, samples: Any, **_: object) -> None:  # noqa: ANN401  # untyped
    """Note what a runner sends with NaN or infinite values."""
    bad = 0
    for episode in samples:
        obs = np.asarray(episode.get_observations(), np.float64)
        rewards = np.asarray(episode.get_rewards(), np.float64)
        wrong = np.atleast_1d(~np.isfinite(obs).all(-1))
        bad += int((wrong[:-1] | wrong[1:] | ~np.isfinite(rewards)).sum())
    if bad:
        run.note("bad rows", rows=bad)


def configured(run: Run) -> Any:  # noqa: ANN401  # untyped
    """Return the algorithm's settings."""
    config = {"ppo": PPOConfig, "impala": IMPALAConfig}[run.algorithm]()
    sizes = {"train_batch_size_per_learner": 512}
    if run.algorithm == "ppo":
        sizes |= {"minibatch_size": 128, "num_epochs": 4}
    config = (
        config.environment(ENV)
        .env_runners(num_env_runners=2)
        .learners(num_learners=0)
        .training(**sizes)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64]))
        .fault_tolerance(restart_failed_env_runners=True)
        .callbacks(on_sample_end=partial(note_bad_rows, run))
    )
    if run.algorithm == "impala":
        config = config.reporting(min_time_s_per_iteration=0.5)  # 10 s would blur what happens when
    if not run.careful:
        return config
    return config.env_runners(sample_timeout_s=DEADLINE_S).fault_tolerance(
        restart_failed_sub_environments=True,
        delay_between_env_runner_restarts_s=DELAY_S,
        env_runner_health_probe_timeout_s=DEADLINE_S,
        env_runner_restore_timeout_s=DEADLINE_S,
    )


def params(algo: Any) -> Iterator[Any]:  # noqa: ANN401  # untyped
    """Return the learner's arrays."""
    for module in algo.learner_group.get_weights().values():
        yield from module.values()


def train(run: Run) -> None:
    """Train until asked to stop."""
    algo = configured(run).build_algo()
    learned = 0
    while not run.asked("stop"):
        result = algo.train()
        runners = result.get("env_runners", {})
        learned += 1
        run.progress(
            learned=learned,
            received=int(runners.get("num_env_steps_sampled_lifetime", 0)),
            bad_rows=sum(note["rows"] for note in run.notes("bad rows")),
            bad_params=not all(map(is_finite, params(algo))),
        )
    algo.stop()


def main() -> None:
    """Run once."""
    os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    torch.set_num_threads(1)
    with running(__doc__, version("ray")) as run:
        ray.init(
            num_cpus=LOGICAL_CPUS,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            _temp_dir=str(run.directory),
        )
        register_env(ENV, lambda _: run.make_env())
        train(run)
    ray.shutdown()


if __name__ == "__main__":
    main()
