"""Stable-Baselines3: PPO on two environments in separate processes.

Careful: with its check for NaN. It has no timeout to set.
"""

from __future__ import annotations

import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecCheckNan

from benchmarks.peers.faulty import FOREVER, Run, is_finite, running


class Notes(BaseCallback):  # type: ignore[misc]  # untyped where this is checked
    """Notes each rollout before it is learned from."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self._rollouts = self._bad_rows = 0

    def _on_step(self) -> bool:
        return not self._run.asked("stop")

    def _on_rollout_end(self) -> None:
        self._rollouts += 1
        rollout = self.model.rollout_buffer
        bad = ~np.isfinite(rollout.observations).all(-1) | ~np.isfinite(rollout.rewards)
        self._bad_rows += int(bad.sum())
        self._run.progress(
            learned=self._rollouts,
            received=self.num_timesteps,
            bad_rows=self._bad_rows,
            bad_params=not all(is_finite(p.detach()) for p in self.model.policy.parameters()),
        )


def main() -> None:
    """Train until asked to stop."""
    torch.set_num_threads(1)
    with running(__doc__, stable_baselines3.__version__) as run:
        envs = make_vec_env(run.make_env, n_envs=2, vec_env_cls=SubprocVecEnv)
        if run.careful:
            envs = VecCheckNan(envs, raise_exception=True)
        model = PPO("MlpPolicy", envs, n_steps=256, device="cpu")
        model.learn(FOREVER, callback=Notes(run))
        envs.close()


if __name__ == "__main__":
    main()
