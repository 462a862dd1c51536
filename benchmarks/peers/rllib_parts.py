"""RLlib's learners and replay buffers without environments: they keep episodes, not transitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from ray.rllib.algorithms.dqn import DQNConfig  # type: ignore[import-not-found]
from ray.rllib.algorithms.sac import SACConfig  # type: ignore[import-not-found]
from ray.rllib.core.rl_module.default_model_config import (  # type: ignore[import-not-found]
    DefaultModelConfig,
)
from ray.rllib.env.single_agent_episode import (  # type: ignore[import-not-found]
    SingleAgentEpisode,
)
from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import (  # type: ignore[import-not-found]
    PrioritizedEpisodeReplayBuffer,
)

from benchmarks.peers.interface import (
    CARTPOLE,
    CHEETAH,
    PER_BATCH,
    PER_ROWS,
    SIZES,
    Sizes,
    make_rows,
)

EPISODE_STEPS = 200
GAMMA = 0.99


def make_episodes(sizes: Sizes, n: int, *, discrete: bool) -> list[Any]:
    """Return transitions without meaning, as episodes of `EPISODE_STEPS`."""
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
    """Return what takes one batch from a replay and learns from it, as `training_step` does."""
    config = (DQNConfig() if discrete else SACConfig()).training(
        train_batch_size_per_learner=sizes.batch,
        n_step=1,
        replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": n_rows},
    )
    if discrete:
        config = config.training(double_q=True, dueling=False)
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
    """Return what samples by priority, and sets the priorities of what was sampled."""
    replay = PrioritizedEpisodeReplayBuffer(capacity=PER_ROWS, alpha=alpha)
    replay.add(make_episodes(SIZES["updates-dqn"], PER_ROWS, discrete=True))
    errors = np.random.default_rng(0).random(PER_BATCH)

    def turn() -> int:
        replay.sample(PER_BATCH, n_step=1, gamma=GAMMA, beta=beta, sample_episodes=True)
        replay.update_priorities(errors)
        return 1

    return turn
