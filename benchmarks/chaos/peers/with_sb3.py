"""Stable-Baselines3: PPO on two environments in processes of their own.

Careful: with its own check for numbers that are none. It has no deadline that could be set.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecCheckNan

from benchmarks.chaos.peers.faulty import make_env
from benchmarks.chaos.peers.scene import FOREVER, Asked, Scene, asked, is_finite, telling

N_STEPS = 256


class Notes(BaseCallback):  # type: ignore[misc]  # untyped where this is checked
    """Notes each rollout that is about to be learned from."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self._scene = scene
        self._rollouts = self._bad_rows = 0

    def _on_step(self) -> bool:
        return not self._scene.stop.exists()

    def _on_rollout_end(self) -> None:
        self._rollouts += 1
        rollout = self.model.rollout_buffer
        bad = ~np.isfinite(rollout.observations).all(-1) | ~np.isfinite(rollout.rewards)
        self._bad_rows += int(bad.sum())
        self._scene.progress(
            learned=self._rollouts,
            received=self.num_timesteps,
            bad_rows=self._bad_rows,
            bad_params=not all(is_finite(p.detach()) for p in self.model.policy.parameters()),
        )


def train(run: Asked) -> None:
    """Train until told to stop."""
    make = partial(make_env, str(run.scene.directory), run.fault)
    envs = make_vec_env(make, n_envs=2, vec_env_cls=SubprocVecEnv)
    if run.careful:
        envs = VecCheckNan(envs, raise_exception=True)
    model = PPO("MlpPolicy", envs, n_steps=N_STEPS, device="cpu")
    model.learn(FOREVER, callback=Notes(run.scene))
    envs.close()


def main() -> None:
    """Run once."""
    run = asked(__doc__)
    torch.set_num_threads(1)
    run.scene.note("version", version=stable_baselines3.__version__)
    with telling(run.scene):
        train(run)


if __name__ == "__main__":
    main()
