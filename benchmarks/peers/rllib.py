"""RLlib, with its new API stack: its environment runners, without a learner.

The driver receives their episodes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import gymnasium
import ray  # type: ignore[import-not-found]  # in the peer's environment alone
from ray.rllib.algorithms.ppo import PPOConfig  # type: ignore[import-not-found]
from ray.rllib.core.rl_module.default_model_config import (  # type: ignore[import-not-found]
    DefaultModelConfig,
)
from ray.rllib.env.wrappers.atari_wrappers import (  # type: ignore[import-not-found]
    wrap_atari_for_new_api_stack,
)
from ray.tune.registry import register_env  # type: ignore[import-not-found]

from benchmarks.peers.interface import (
    ATARI,
    CARTPOLE,
    CHEETAH,
    Request,
    Stage,
    Work,
    measure_once,
)

ROLLOUTS = {"vector": False, "threads": 1}

SAMPLING: dict[str, dict[str, Any]] = {
    CARTPOLE: {"runners": 2, "envs": 128, **ROLLOUTS},
    CHEETAH: {"runners": 2, "envs": 16, **ROLLOUTS},
    ATARI: {"runners": 2, "envs": 8, **ROLLOUTS},
}
"""Among the fastest, in env steps/s on two cores that did other things as well, so that a tenth or
a quarter says nothing; the best of one or two:

CartPole, environments of each of two runners: 16 6,900, 64 14,400, 128 26,700; with CartPole's own
vector of environments 64 16,100, 128 16,900, 256 21,900, three runners of 64 28,500, of 128 20,400.
IMPALA with one runner of 64 23,600, with two 4,800 (once no start within 100 s); APPO with one
3,200, with two 6,400. HalfCheetah: 16 4,500. Pong: 8 800.
"""

PONG = "Pong"
STEPS_A_REQUEST = 32
"""Steps of each environment in one request to a runner."""

WARM_UP_S = 3.0
STORE_BYTES = 300 * 2**20
LOGICAL_CPUS = 8
"""More than there are CPUs, so that no actor waits for one."""


def make_pong(_config: object) -> Any:  # noqa: ANN401  # untyped here
    """Return Pong with RLlib's own wrappers."""
    import ale_py  # noqa: PLC0415  # the runners of other environments do without

    gymnasium.register_envs(ale_py)
    return wrap_atari_for_new_api_stack(gymnasium.make(ATARI, frameskip=1), dim=84, framestack=4)


def start() -> None:
    """Start Ray on this machine."""
    ray.init(
        num_cpus=LOGICAL_CPUS,
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=tempfile.mkdtemp(prefix="ray-"),
    )


def sampler(asked: Request) -> Any:  # noqa: ANN401  # untyped here
    """Build an algorithm whose runners are measured, with a 64x64 policy."""
    settings = asked.settings
    register_env(PONG, make_pong)
    model = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="relu")
    if asked.env == ATARI:
        model = DefaultModelConfig(
            conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]],
            conv_activation="relu",
            head_fcnet_hiddens=[64, 64],
        )
    mode = gymnasium.VectorizeMode
    config = (
        PPOConfig()
        .environment(PONG if asked.env == ATARI else asked.env)
        .env_runners(
            num_env_runners=settings["runners"],
            num_envs_per_env_runner=settings["envs"],
            gym_env_vectorize_mode=mode.VECTOR_ENTRY_POINT if settings["vector"] else mode.SYNC,
        )
        .learners(num_learners=0)
        .rl_module(model_config=model)
        .reporting(min_time_s_per_iteration=0.5)
        .debugging(seed=asked.seed, log_level="ERROR")
    )
    return config.build_algo()


def sampling(asked: Request) -> Work:
    """Measure the runners."""
    start()
    algorithm = sampler(asked)
    turn = collecting(algorithm, STEPS_A_REQUEST * asked.settings["envs"])

    def close() -> None:
        algorithm.stop()
        ray.shutdown()

    return Work(turn=turn, close=close, warm_up_s=WARM_UP_S)


def collecting(algorithm: Any, steps: int) -> Callable[[], int]:  # noqa: ANN401  # see above
    """Return a function that requests more from each runner as soon as its episodes arrive."""
    group = algorithm.env_runner_group

    def ask(runner: int) -> None:
        group.foreach_env_runner_async(
            "sample", "turn", kwargs={"num_timesteps": steps}, remote_worker_ids=[runner]
        )

    def turn() -> int:
        n = 0
        for runner, episodes in group.fetch_ready_async_reqs(tags="turn", timeout_seconds=1.0):
            n += sum(map(len, episodes))
            ask(runner)
        return n

    for runner in group.healthy_worker_ids():
        ask(runner)
    return turn


if __name__ == "__main__":
    os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    measure_once("rllib", version("ray"), __doc__, {"sampling": Stage(sampling, SAMPLING)})
