"""Environments of other packages, and wrappers by name: MiniGrid, DM Control, Gymnasium-Robotics.

pip install minigrid
pip install 'shimmy[dm-control]' 'dm-control==1.0.43' 'mujoco==3.10.0'
pip install gymnasium-robotics 'mujoco==3.10.0'

python -m examples.other_packages minigrid
"""

from __future__ import annotations

import sys

from asyncrl import (
    AsyncTrainerConfig,
    EnvConfig,
    MaxOptSteps,
    RateLimiterConfig,
    ReachesUpperBound,
    RunConfig,
    TrainResult,
    train_async,
)
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import AgentConfig
from asyncrl.core.segment import SegmentConfig
from asyncrl.replay.hindsight import HindsightReplayConfig

ENVS = {
    # What is left of the observation is the image of 7x7 tiles.
    "minigrid": EnvConfig(
        id="minigrid:MiniGrid-Empty-5x5-v0",
        wrappers=("minigrid.wrappers:ImgObsWrapper",),
        n_envs=8,
    ),
    # One vector instead of a field for positions and one for velocities.
    "dm_control": EnvConfig(
        id="shimmy:dm_control/cartpole-balance-v0",
        wrappers=("gymnasium.wrappers:FlattenObservation",),
        n_envs=4,
    ),
    # The reward is the negative distance between gripper and goal.
    "robotics": EnvConfig(
        id="gymnasium_robotics:FetchReachDense-v4",
        wrappers=("gymnasium.wrappers:TimeLimit(max_episode_steps=10)",),
        n_envs=4,
    ),
    # The reward is -1 until the gripper is at the goal.
    "goals": EnvConfig(id="gymnasium_robotics:FetchReach-v4", n_envs=4),
}

TARGETS = {"minigrid": 0.9, "dm_control": 900.0, "robotics": -0.5, "goals": -2.5}


def main(name: str = "minigrid", max_opt_steps: int = 20_000) -> TrainResult:
    """Train until the mean return reaches the target, or for `max_opt_steps` steps."""
    agent: AgentConfig = SACConfig(hidden=(128, 128))
    config = RunConfig(
        limiter=RateLimiterConfig(samples_per_insert=128, min_size=500),
        trainer=AsyncTrainerConfig(batch_size=128),
    )
    if name == "minigrid":
        # Tiles are bytes of 0 to 10, and images are scaled by 255.
        agent, config = DQNConfig(normalize_obs=True), RunConfig()
    if name == "goals":
        agent = SACConfig(
            hidden=(64, 64), actor_learning_rate=1e-3, critic_learning_rate=1e-3, normalize_obs=True
        )
        config = RunConfig(
            segment=SegmentConfig(length=50),
            replay=HindsightReplayConfig(gamma=0.95),
            limiter=RateLimiterConfig(samples_per_insert=128, min_size=600),
            trainer=AsyncTrainerConfig(batch_size=128),
        )
    stop = ReachesUpperBound("eval_reward", TARGETS[name]) | MaxOptSteps(max_opt_steps)
    result = train_async(agent, ENVS[name].build, config, stop=stop)
    print(result.stop_reason, result.best_score)
    return result


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else "minigrid")
