"""Stable-Baselines3: environment steps a second of PPO's rollouts, policy in the loop.

CartPole-v1, 64 environments in one process (its fastest arrangement for them), a 64x64 policy.
Counted are rollouts alone; what PPO learns between them is kept as short as it can be.
"""

from __future__ import annotations

import statistics
import time
from functools import partial

import gymnasium
from stable_baselines3 import PPO  # type: ignore[import-not-found]
from stable_baselines3.common.callbacks import (  # type: ignore[import-not-found]
    BaseCallback,
)
from stable_baselines3.common.vec_env import (  # type: ignore[import-not-found]
    DummyVecEnv,
)

from benchmarks.peers.sb3_common import begin, parser, report

__all__ = ["RolloutTimer"]

N_STEPS = 128
WARM_UP_ROLLOUTS = 3


class RolloutTimer(BaseCallback):  # type: ignore[misc]  # untyped where this is checked
    """Times each rollout, and ends training once enough of them were timed."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.rollouts_s: list[float] = []
        self._left_s = seconds
        self._warm_up = WARM_UP_ROLLOUTS

    def _on_rollout_start(self) -> None:
        self._began = time.perf_counter()

    def _on_step(self) -> bool:
        return self._left_s > 0

    def _on_rollout_end(self) -> None:
        elapsed = time.perf_counter() - self._began
        if self._warm_up:
            self._warm_up -= 1
            return
        self.rollouts_s.append(elapsed)
        self._left_s -= elapsed


def main() -> None:
    """Measure and print one JSON line."""
    arguments = parser(__doc__, threads=1)
    arguments.add_argument("--envs", type=int, default=64)
    arguments.add_argument("--seconds", type=float, default=5.0, help="of rollouts")
    args = arguments.parse_args()
    begin(args.threads)
    env = DummyVecEnv([partial(gymnasium.make, "CartPole-v1") for _ in range(args.envs)])
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=N_STEPS,
        batch_size=N_STEPS * args.envs,
        n_epochs=1,
        policy_kwargs={"net_arch": [64, 64]},
        seed=args.seed,
        device="cpu",
    )
    timer = RolloutTimer(args.seconds)
    model.learn(total_timesteps=2**40, callback=timer)
    n = N_STEPS * args.envs
    report(
        algorithm="PPO rollouts",
        env="CartPole-v1",
        envs=args.envs,
        rollouts=len(timer.rollouts_s),
        env_steps_per_s=n * len(timer.rollouts_s) / sum(timer.rollouts_s),
        median_env_steps_per_s=n / statistics.median(timer.rollouts_s),
    )


if __name__ == "__main__":
    main()
