"""RLlib, with its new API stack: its environment runners, learners and replays.

Runners are measured without a learner (`rollouts`: the driver receives the episodes), or below one
of its asynchronous algorithms.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import ray  # type: ignore[import-not-found]  # in the peer's environment alone
import torch
from ray.rllib.algorithms.appo import APPOConfig  # type: ignore[import-not-found]
from ray.rllib.algorithms.dqn import DQNConfig  # type: ignore[import-not-found]
from ray.rllib.algorithms.impala import IMPALAConfig  # type: ignore[import-not-found]
from ray.rllib.algorithms.ppo import PPOConfig  # type: ignore[import-not-found]
from ray.rllib.algorithms.sac import SACConfig  # type: ignore[import-not-found]
from ray.rllib.core.rl_module.default_model_config import (  # type: ignore[import-not-found]
    DefaultModelConfig,
)
from ray.rllib.env.single_agent_episode import (  # type: ignore[import-not-found]
    SingleAgentEpisode,
)
from ray.rllib.env.wrappers.atari_wrappers import (  # type: ignore[import-not-found]
    wrap_atari_for_new_api_stack,
)
from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import (  # type: ignore[import-not-found]
    PrioritizedEpisodeReplayBuffer,
)
from ray.tune.registry import register_env  # type: ignore[import-not-found]

from benchmarks.peers.interface import (
    ATARI,
    CARTPOLE,
    CHEETAH,
    PER,
    PER_BATCH,
    PER_ROWS,
    SIZES,
    UPDATES,
    Act,
    Request,
    Sizes,
    Stage,
    Training,
    Work,
    make_rows,
    measure_once,
)

EPISODE_STEPS = 200
GAMMA = 0.99


def make_episodes(sizes: Sizes, n: int, *, discrete: bool) -> list[Any]:
    """Return random transitions, as episodes of `EPISODE_STEPS`."""
    rows = make_rows(sizes, n + 1, discrete=discrete)
    episodes = []
    for begin in range(0, n, EPISODE_STEPS):
        end = min(begin + EPISODE_STEPS, n)
        episode = SingleAgentEpisode(
            observations=list(rows["obs"][begin : end + 1]),
            actions=list(rows["action"][begin:end]),
            rewards=list(rows["reward"][begin:end]),
            terminated=True,
            len_lookback_buffer=0,
        )
        episode.to_numpy()
        episodes.append(episode)
    return episodes


def make_update_turn(sizes: Sizes, n_rows: int, *, discrete: bool, seed: int) -> Callable[[], int]:
    """Return a function that samples a batch and learns from it, as `training_step` does."""
    config = (DQNConfig() if discrete else SACConfig()).training(
        train_batch_size_per_learner=sizes.batch,
        n_step=1,
        replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": n_rows},
    )
    if discrete:
        config = config.training(double_q=False, dueling=False)
    model = DefaultModelConfig(
        fcnet_hiddens=[sizes.hidden[0]],
        fcnet_activation="relu",
        head_fcnet_hiddens=[sizes.hidden[1]],
    )
    config = (
        config.environment(CARTPOLE if discrete else CHEETAH)
        .env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .rl_module(model_config=model)
        .debugging(seed=seed, log_level="ERROR")
    )
    algorithm = config.build_algo()
    replay = algorithm.local_replay_buffer
    replay.add(make_episodes(sizes, n_rows, discrete=discrete))
    steps = {"num_env_steps_sampled_lifetime": n_rows}

    def turn() -> int:
        sampled = replay.sample(sizes.batch, n_step=1, gamma=GAMMA, sample_episodes=True)
        algorithm.learner_group.update(episodes=sampled, timesteps=steps)
        return 1

    return turn


def make_priority_turn(alpha: float, beta: float) -> Callable[[], int]:
    """Return a function that samples by priority and updates the sampled priorities."""
    replay = PrioritizedEpisodeReplayBuffer(capacity=PER_ROWS, alpha=alpha)
    replay.add(make_episodes(SIZES["updates-dqn"], PER_ROWS, discrete=True))
    errors = np.random.default_rng(0).random(PER_BATCH)

    def turn() -> int:
        replay.sample(PER_BATCH, n_step=1, gamma=GAMMA, beta=beta, sample_episodes=True)
        replay.update_priorities(errors)
        return 1

    return turn


ROLLOUTS = {"algorithm": "rollouts", "vector": False, "threads": 1}

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
    "threads": 1,
}

ALGORITHMS = {"rollouts": PPOConfig, "impala": IMPALAConfig, "appo": APPOConfig}
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
    """Build the algorithm whose runners are measured, with a 64x64 policy."""
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


def sampling(asked: Request) -> Work:
    """Measure the runners, alone or below an algorithm."""
    start()
    algorithm = sampler(asked)
    turn = collecting(algorithm, STEPS_A_REQUEST * asked.settings["envs"])
    if asked.settings["algorithm"] != "rollouts":
        turn = training_on(algorithm)

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


def training_on(algorithm: Any) -> Callable[[], int]:  # noqa: ANN401  # see above
    """Return a function that trains and returns the steps that runners reported."""
    before = 0

    def turn() -> int:
        nonlocal before
        result, was = algorithm.train()["env_runners"], before
        before = int(result.get("num_env_steps_sampled_lifetime", 0))
        return before - was

    return turn


def updates(asked: Request) -> Work:
    """Optimise from a full replay buffer, uniformly sampled."""
    start()
    sizes, n_rows = SIZES[asked.stage], asked.settings["rows"]
    turn = make_update_turn(sizes, n_rows, discrete=asked.discrete, seed=asked.seed)
    return Work(turn=turn, close=ray.shutdown)


def prioritized(asked: Request) -> Work:
    """Sample by priority, and update the sampled priorities."""
    return Work(turn=make_priority_turn(asked.settings["alpha"], asked.settings["beta"]))


def training(asked: Request) -> Training:
    """Train DQN with RLlib's tuned settings, on one runner in this process."""
    start()
    settings = {name: value for name, value in asked.settings.items() if name != "threads"}
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
    algorithm = config.build_algo()

    def run(over: Callable[[int, int], bool], env_steps: int) -> None:
        made = learned = 0
        while not over(made, learned) and not 0 < env_steps <= made:
            result = algorithm.train()
            made = int(result["env_runners"]["num_env_steps_sampled_lifetime"])
            learner = result.get("learners", {}).get("__all_modules__", {})
            rows = learner.get("num_env_steps_trained_lifetime", 0)
            learned = int(rows) // settings["train_batch_size_per_learner"]

    return Training(run=run, act=greedy(algorithm))


def greedy(algorithm: Any) -> Act:  # noqa: ANN401  # see above
    """Return the policy without exploration."""

    @torch.inference_mode()
    def act(obs: Any) -> Any:  # noqa: ANN401  # arrays
        batch = {"obs": torch.from_numpy(obs)}
        return algorithm.get_module().forward_inference(batch)["actions"].numpy()

    return act


if __name__ == "__main__":
    os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    measure_once(
        "rllib",
        version("ray"),
        __doc__,
        {
            "sampling": Stage(sampling, SAMPLING),
            "updates-dqn": Stage(updates, UPDATES),
            "updates-sac": Stage(updates, UPDATES),
            "per": Stage(prioritized, PER),
            "score-dqn": Stage(training, DQN_SETTINGS),
        },
    )
