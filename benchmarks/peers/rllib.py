"""RLlib, with its new API stack: what its environment runners collect, its learners and replays.

Runners are measured without a learner (`rollouts`: the driver receives the episodes), or below one
of its asynchronous algorithms.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import ray  # type: ignore[import-not-found]  # in the peer's environment alone
import torch
from ray.rllib.algorithms.appo import APPOConfig  # type: ignore[import-not-found]
from ray.rllib.algorithms.dqn import DQNConfig  # type: ignore[import-not-found]
from ray.rllib.algorithms.impala import IMPALAConfig  # type: ignore[import-not-found]
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
    REPLAY_ROWS,
    SIZES,
    Request,
    measure_once,
    rate,
    report,
)
from benchmarks.peers.race import GOALS, Race
from benchmarks.peers.rllib_parts import make_priority_turn, make_update_turn

SAMPLING: dict[str, dict[str, Any]] = {
    CARTPOLE: {"algorithm": "rollouts", "runners": 2, "envs": 128, "vector": False},
    CHEETAH: {"algorithm": "rollouts", "runners": 2, "envs": 16, "vector": False},
    ATARI: {"algorithm": "rollouts", "runners": 2, "envs": 8, "vector": False},
}
"""Among the fastest, in env steps/s on two cores that did other things as well, so that a tenth or
a quarter says nothing; the best of one or two:

CartPole, environments of each of two runners: 16 6,900, 64 14,400, 128 26,700; with CartPole's own
vector of environments 64 16,100, 128 16,900, 256 21,900, three runners of 64 28,500, of 128 20,400.
IMPALA with one runner of 64 23,600, with two 4,800 (once no start within 100 s); APPO with one
3,200, with two 6,400. HalfCheetah: 16 4,500. Pong: 8 800.
"""

# https://github.com/ray-project/ray, rllib/tuned_examples/dqn/cartpole_dqn.py.
DQN_SETTINGS: dict[str, Any] = {
    "lr": 0.0005,
    "train_batch_size_per_learner": 32,
    "replay_buffer_config": {
        "type": "PrioritizedEpisodeReplayBuffer",
        "capacity": 50_000,
        "alpha": 0.6,
        "beta": 0.4,
    },
    "n_step": (2, 5),
    "double_q": True,
    "dueling": True,
    "epsilon": [(0, 1.0), (10_000, 0.02)],
}

ALGORITHMS = {"rollouts": PPOConfig, "impala": IMPALAConfig, "appo": APPOConfig}
PONG = "Pong"
STEPS_A_REQUEST = 32
"""Of each environment, that a runner is asked for at once."""

WARM_UP_S = 3.0
STORE_BYTES = 300 * 2**20
LOGICAL_CPUS = 8
"""More than there are, so that no actor waits for one."""


def make_pong(_config: object) -> Any:  # noqa: ANN401  # untyped here
    """Return Pong with RLlib's own wrappers."""
    import ale_py  # noqa: PLC0415  # the runners of other environments do without

    gymnasium.register_envs(ale_py)
    return wrap_atari_for_new_api_stack(gymnasium.make(ATARI, frameskip=1), dim=84, framestack=4)


@contextmanager
def cluster() -> Iterator[None]:
    """Start Ray on this machine, and stop it."""
    ray.init(
        num_cpus=LOGICAL_CPUS,
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=tempfile.mkdtemp(prefix="ray-"),
    )
    try:
        yield
    finally:
        ray.shutdown()


def sampler(asked: Request, settings: dict[str, Any]) -> Any:  # noqa: ANN401  # untyped here
    """Build the algorithm whose runners are measured, with a 64x64 policy."""
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
        ALGORITHMS[settings["algorithm"]]()
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


def collect(algorithm: Any, settings: dict[str, Any], seconds: float) -> float:  # noqa: ANN401  # see above
    """Ask each runner for more as soon as its episodes have arrived."""
    group = algorithm.env_runner_group
    steps = STEPS_A_REQUEST * settings["envs"]

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
    return rate(turn, seconds, WARM_UP_S)


def train(algorithm: Any, seconds: float) -> float:  # noqa: ANN401  # see above
    """Train, and return the steps a second that runners have reported."""

    def steps_so_far() -> int:
        return int(algorithm.train()["env_runners"].get("num_env_steps_sampled_lifetime", 0))

    while not steps_so_far():
        pass
    ready = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < ready:
        before = steps_so_far()
    began, after = time.perf_counter(), before
    while (elapsed := time.perf_counter() - began) < seconds:
        after = steps_so_far()
    return (after - before) / elapsed


def sampling(asked: Request) -> None:
    """Measure the runners, alone or below an algorithm."""
    settings = settings_of(asked)
    torch.set_num_threads(settings["threads"])
    with cluster():
        algorithm = sampler(asked, settings)
        if settings["algorithm"] == "rollouts":
            value = collect(algorithm, settings, asked.seconds)
        else:
            value = train(algorithm, asked.seconds)
        algorithm.stop()
    give(asked, value)


def updates(asked: Request) -> None:
    """Optimise from a full replay buffer, uniformly sampled."""
    settings = settings_of(asked)
    torch.set_num_threads(settings["threads"])
    discrete = asked.stage == "updates-dqn"
    with cluster():
        sizes, rows = SIZES[asked.stage], settings["rows"]
        turn = make_update_turn(sizes, rows, discrete=discrete, seed=asked.seed)
        give(asked, rate(turn, asked.seconds))


def prioritized(asked: Request) -> None:
    """Sample by priority, and set the priorities of what was sampled."""
    settings = settings_of(asked)
    turn = make_priority_turn(settings["alpha"], settings["beta"])
    give(asked, rate(turn, asked.seconds))


def score(asked: Request) -> None:
    """Train DQN with RLlib's tuned settings until the score is reached."""
    torch.set_num_threads(settings_of(asked)["threads"])
    goal = GOALS[asked.stage]
    chosen = {**DQN_SETTINGS, **asked.settings}
    with cluster():
        algorithm = dqn(asked, chosen)
        opt_steps = env_steps = 0
        race = Race(goal, asked.seconds)
        while not race.over(greedy(algorithm), opt_steps):
            result = algorithm.train()
            env_steps = int(result["env_runners"]["num_env_steps_sampled_lifetime"])
            learned = result.get("learners", {}).get("__all_modules__", {})
            rows = learned.get("num_env_steps_trained_lifetime", 0)
            opt_steps = int(rows) // chosen["train_batch_size_per_learner"]
        algorithm.stop()
    give(asked, race.seconds, note=race.note(), details=race.details(env_steps, opt_steps))


def dqn(asked: Request, settings: dict[str, Any]) -> Any:  # noqa: ANN401  # untyped here
    """Build DQN on one runner in this process."""
    model = DefaultModelConfig(
        fcnet_hiddens=[256],
        fcnet_activation="tanh",
        fcnet_bias_initializer="zeros_",
        head_fcnet_bias_initializer="zeros_",
        head_fcnet_hiddens=[256],
    )
    config = (
        DQNConfig()
        .environment(asked.env)
        .env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .training(**settings)
        .rl_module(model_config=model)
        .reporting(min_sample_timesteps_per_iteration=100)
        .debugging(seed=asked.seed, log_level="ERROR")
    )
    return config.build_algo()


def greedy(algorithm: Any) -> Callable[[npt.NDArray[np.float32]], npt.NDArray[Any]]:  # noqa: ANN401  # see above
    """Return the policy without exploration."""

    @torch.inference_mode()
    def act(obs: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        chosen: torch.Tensor = algorithm.get_module().forward_inference(
            {"obs": torch.from_numpy(obs)}
        )["actions"]
        return chosen.numpy()

    return act


def settings_of(asked: Request) -> dict[str, Any]:
    """Return the fastest known, or those that were asked for."""
    known = {
        "sampling": SAMPLING.get(asked.env, {}),
        "per": {"alpha": 0.6, "beta": 0.4},
        "score-dqn": DQN_SETTINGS,
    }.get(asked.stage, {"rows": REPLAY_ROWS})
    return {**known, "threads": asked.threads or 1, **asked.settings}


def give(
    asked: Request,
    value: float | None,
    *,
    note: str = "",
    details: dict[str, Any] | None = None,
) -> None:
    """Print the result."""
    report(
        asked,
        peer="rllib",
        version=version("ray"),
        value=value,
        settings=settings_of(asked),
        note=note,
        details=details,
    )


STAGES = {
    "sampling": sampling,
    "updates-dqn": updates,
    "updates-sac": updates,
    "per": prioritized,
    "score-dqn": score,
}


if __name__ == "__main__":
    os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    measure_once(__doc__, STAGES)
