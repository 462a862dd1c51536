"""The rows of the table of commands: environments, bars, limits, and what each needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An environment and a score."""

    env: str
    bar: float
    max_s: float = 120.0
    """Limit of seconds of either side."""

    seeds: int = 10
    """10, or 5 where a run takes more than a minute."""

    policy: str = "MlpPolicy"
    """Stable-Baselines3's name of the network."""

    zoo_env: str = ""
    """Name in the zoo of Stable-Baselines3, where it differs; `default` for its defaults."""

    venv: str = ""
    """Environment below .peers for both sides, where packages do not fit the others."""


_ROBOTICS = "gymnasium_robotics:FetchReach-v4"
_BREAKOUT = "benchmarks.learning.environments:minatar_breakout"

ROWS: Mapping[str, Row] = {
    "cartpole": Row(env="CartPole-v1", bar=475.0),
    "acrobot": Row(env="Acrobot-v1", bar=-90.0),
    "mountaincar": Row(env="MountainCar-v0", bar=-110.0, max_s=30.0),
    "mountaincar-continuous": Row(env="MountainCarContinuous-v0", bar=90.0, max_s=30.0),
    "pendulum": Row(env="Pendulum-v1", bar=-150.0),
    "taxi": Row(env="Taxi-v4", bar=7.0, max_s=30.0, zoo_env="default"),
    "lunarlander": Row(env="LunarLander-v3", bar=200.0),
    "lunarlander-continuous": Row(env="LunarLanderContinuous-v3", bar=200.0),
    "bipedalwalker": Row(env="BipedalWalker-v3", bar=250.0, max_s=240.0),
    "halfcheetah": Row(env="HalfCheetah-v5", bar=2500.0),
    "halfcheetah-5000": Row(env="HalfCheetah-v5", bar=5000.0),
    "hopper": Row(env="Hopper-v5", bar=2000.0, max_s=240.0),
    "walker2d": Row(env="Walker2d-v5", bar=3000.0, max_s=300.0, seeds=5),
    "ant": Row(env="Ant-v5", bar=2500.0, max_s=600.0, seeds=5),
    "fetchreach": Row(
        env=_ROBOTICS, bar=-2.5, max_s=60.0, policy="MultiInputPolicy", venv="robotics"
    ),
    "breakout": Row(env=_BREAKOUT, bar=8.0, zoo_env="none"),
    "pong": Row(
        env="ALE/Pong-v5", bar=15.0, max_s=1200.0, seeds=5, policy="CnnPolicy", zoo_env="atari"
    ),
}
