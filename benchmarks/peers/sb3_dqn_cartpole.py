"""Stable-Baselines3: DQN on CartPole-v1 to a mean return of 475, with the settings of its zoo.

The settings: https://github.com/DLR-RM/rl-baselines3-zoo, hyperparams/dqn.yml, "Tuned".
Evaluated every 1,024 environment steps, which is every 512 optimisation steps.
"""

from __future__ import annotations

from typing import Any

from stable_baselines3 import DQN  # type: ignore[import-not-found]
from stable_baselines3.common.env_util import (  # type: ignore[import-not-found]
    make_vec_env,
)

from benchmarks.peers.sb3_common import Goal, begin, parser, report, train_until

__all__ = ["SETTINGS"]

SETTINGS: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
}
MAX_ENV_STEPS = 50_000


def main() -> None:
    """Train once and print one JSON line."""
    arguments = parser(__doc__, threads=1)
    arguments.add_argument("--max-env-steps", type=int, default=MAX_ENV_STEPS)
    args = arguments.parse_args()
    begin(args.threads)
    env = make_vec_env("CartPole-v1", n_envs=1, seed=args.seed)
    model = DQN("MlpPolicy", env, seed=args.seed, device="cpu", **SETTINGS)
    goal = Goal(env="CartPole-v1", score=475.0, interval_env_steps=1024)
    report(algorithm="DQN", **train_until(model, goal, args.max_env_steps, args.seed))


if __name__ == "__main__":
    main()
