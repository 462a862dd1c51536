"""Stable-Baselines3: SAC on Pendulum-v1 to a mean return of -200, with the settings of its zoo.

The settings: https://github.com/DLR-RM/rl-baselines3-zoo, hyperparams/sac.yml; it has the
library's defaults (256x256, batches of 256, one update a step) and a higher learning rate.
Evaluated every 500 environment steps, which is every 500 optimisation steps.
"""

from __future__ import annotations

from stable_baselines3 import SAC  # type: ignore[import-not-found]
from stable_baselines3.common.env_util import (  # type: ignore[import-not-found]
    make_vec_env,
)

from benchmarks.peers.sb3_common import Goal, begin, parser, report, train_until

__all__ = ["LEARNING_RATE"]

LEARNING_RATE = 1e-3
MAX_ENV_STEPS = 20_000


def main() -> None:
    """Train once and print one JSON line."""
    arguments = parser(__doc__, threads=0)
    arguments.add_argument("--max-env-steps", type=int, default=MAX_ENV_STEPS)
    args = arguments.parse_args()
    begin(args.threads)
    env = make_vec_env("Pendulum-v1", n_envs=1, seed=args.seed)
    model = SAC("MlpPolicy", env, seed=args.seed, device="cpu", learning_rate=LEARNING_RATE)
    goal = Goal(env="Pendulum-v1", score=-200.0, interval_env_steps=500)
    report(algorithm="SAC", **train_until(model, goal, args.max_env_steps, args.seed))


if __name__ == "__main__":
    main()
