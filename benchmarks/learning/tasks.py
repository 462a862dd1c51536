"""The tasks: environment, algorithm, the score that counts as learned, and the limit of steps.

An algorithm's settings are those of its preset in `asyncrl/run/presets.py`. Settings that a
task changes are listed beside its name, under the names of `asyncrl train` flags.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from asyncrl.agents.parts.exploration import EpsilonLadder
from asyncrl.agents.parts.networks import small_image_network
from asyncrl.run.presets import preset, preset_lines
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from benchmarks.peers.apart import python_of

_ENVIRONMENTS = "benchmarks.learning.environments"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """An environment, and a bar."""

    env: str
    bar: float
    """Mean return at which it is learned: a run ends with two evaluations in a row at it."""

    random: float
    """Mean return of actions at random."""

    max_env_steps: int = 300_000
    """Maximum environment steps. A run below the bar by then has failed."""

    max_seconds: float = 300.0

    episodes: int = 20
    """Episodes of each evaluation, and, with other seeds, of the final score."""

    seeds: int = 10
    """Number of seeds, from `FIRST_SEED` on; 5 if a run takes more than a minute."""

    needs: str = ""
    """Module without which the environment cannot be made."""

    words: str = ""
    """What readers call it, if not by the environment's name."""

    @property
    def title(self) -> str:
        """Return what readers call it."""
        return self.words or self.env


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An algorithm on a task."""

    algorithm: str
    task: str
    preset: str = ""
    """The algorithm's own name by default."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted names -> values that differ from the preset's, in the order in which they are set."""

    @property
    def name(self) -> str:
        """Return its name on the command line."""
        return f"{self.algorithm}/{self.task}"

    def config(self, seed: int, max_env_steps: int = 0) -> RunConfig:
        """Return all settings of a run with two actors; a smaller budget can be given."""
        task = TASKS[self.task]
        start = preset(self.preset or self.algorithm)
        play = replace(start.evaluate.play, episodes=task.episodes)
        config = replace(
            start,
            seed=seed,
            actors=2,
            env=task.env,
            env_kwargs={},
            max_env_steps=max_env_steps or task.max_env_steps,
            max_seconds=task.max_seconds,
            stop_at_return=task.bar,
            evaluate=replace(start.evaluate, play=play),
            # These runs are never resumed; the checkpoint at the end is for scoring.
            save=replace(start.save, interval_opt_steps=0, interval_s=0.0, replay=False),
        )
        return with_settings(config, self.settings)


TASKS: Mapping[str, Task] = {
    "cartpole": Task(env="CartPole-v1", bar=475.0, random=23.7, max_env_steps=1_000_000),
    "cartpole-hidden": Task(
        env=f"{_ENVIRONMENTS}:cartpole_hidden",
        bar=400.0,
        random=23.7,
        max_env_steps=2_000_000,
        max_seconds=600.0,
        words="CartPole-v1, velocities hidden",
    ),
    "pendulum": Task(env="Pendulum-v1", bar=-200.0, random=-1208.0, max_env_steps=1_000_000),
    "acrobot": Task(env="Acrobot-v1", bar=-100.0, random=-497.0, max_env_steps=1_000_000),
    "taxi": Task(env="Taxi-v4", bar=7.0, random=-777.5, episodes=100),
    "taxi-masked": Task(
        env="Taxi-v4", bar=7.5, random=-777.5, episodes=100, words="Taxi-v4, with action masks"
    ),
    "frozenlake": Task(
        env="FrozenLake-v1", bar=0.7, random=0.01, episodes=200, words="FrozenLake-v1, slippery"
    ),
    # Its random episodes are cut after 1000 steps.
    "cliffwalking": Task(env="CliffWalking-v1", bar=-13.0, random=-9656.0),
    "blackjack": Task(env="Blackjack-v1", bar=-0.06, random=-0.4, episodes=4000),
    "mountaincar-discrete": Task(
        env="MountainCar-v0", bar=-110.0, random=-200.0, max_env_steps=500_000
    ),
    "mountaincar": Task(
        env="MountainCarContinuous-v0",
        bar=90.0,
        random=-33.3,
        max_env_steps=500_000,
        max_seconds=600.0,
    ),
    "lunarlander": Task(
        env="LunarLander-v3",
        bar=200.0,
        random=-191.0,
        max_env_steps=500_000,
        max_seconds=600.0,
        needs="Box2D",
    ),
    "halfcheetah": Task(
        env="HalfCheetah-v5",
        bar=2500.0,
        random=-261.0,
        max_env_steps=100_000,
        max_seconds=1800.0,
        seeds=5,
        needs="mujoco",
    ),
    "fetchreach": Task(
        env="gymnasium_robotics:FetchReach-v4",
        bar=-2.5,
        random=-49.1,
        max_env_steps=50_000,
        max_seconds=600.0,
        needs="gymnasium_robotics",
        words="FetchReach-v4",
    ),
    "breakout": Task(
        env=f"{_ENVIRONMENTS}:minatar_breakout",
        bar=8.0,
        random=0.4,
        max_env_steps=4_000_000,
        max_seconds=1800.0,
        seeds=5,
        needs="minatar",
        words="MinAtar Breakout",
    ),
    "pong": Task(
        env="ALE/Pong-v5",
        bar=-10.0,
        random=-20.7,
        max_env_steps=10_000_000,
        max_seconds=3600.0,
        episodes=10,
        seeds=5,
        needs="ale_py",
    ),
}
"""Random play was measured over 100 episodes, 20 of HalfCheetah; Pong's is that of Mnih et al.
(2015)."""

_MEMORY = {"agent.memory": "gru"}
_SHARED = {"agent.shared_torso": True}

CASES: tuple[Case, ...] = (
    Case(algorithm="dqn", task="cartpole"),
    Case(algorithm="rainbow", task="cartpole"),
    Case(algorithm="c51", task="cartpole"),
    Case(algorithm="iqn", task="cartpole"),
    Case(algorithm="ppo", task="cartpole"),
    Case(algorithm="appo", task="cartpole"),
    Case(algorithm="impala", task="cartpole"),
    Case(algorithm="discrete-sac", task="cartpole"),
    Case(algorithm="sac", task="pendulum"),
    Case(algorithm="td3", task="pendulum"),
    Case(algorithm="crossq", task="pendulum"),
    Case(algorithm="ppo", task="pendulum", preset="ppo-mujoco"),
    Case(algorithm="dqn", task="acrobot"),
    Case(algorithm="ppo", task="acrobot"),
    Case(algorithm="dqn", task="mountaincar-discrete", preset="dqn-mountaincar"),
    Case(algorithm="dqn", task="taxi", preset="dqn-toy"),
    Case(
        algorithm="dqn",
        task="taxi-masked",
        preset="dqn-toy",
        settings={"env_wrappers": ("asyncrl.envs.masks:ActionMasks",)},
    ),
    Case(algorithm="dqn", task="frozenlake", preset="dqn-toy"),
    Case(algorithm="dqn", task="cliffwalking", preset="dqn-toy"),
    Case(algorithm="dqn", task="blackjack", preset="dqn-toy"),
    Case(algorithm="r2d2", task="cartpole-hidden"),
    Case(
        algorithm="ppo-gru", task="cartpole-hidden", preset="ppo", settings={**_SHARED, **_MEMORY}
    ),
    Case(algorithm="impala-gru", task="cartpole-hidden", preset="impala", settings=_MEMORY),
    Case(algorithm="sac", task="mountaincar", preset="sac-mountaincar"),
    Case(algorithm="sac", task="halfcheetah", preset="sac-mujoco"),
    Case(algorithm="td3", task="halfcheetah", preset="td3-mujoco"),
    Case(algorithm="crossq", task="halfcheetah", preset="crossq-mujoco"),
    Case(algorithm="sac", task="fetchreach", preset="sac-goals"),
    Case(
        algorithm="rainbow",
        task="breakout",
        settings={
            "agent.hidden": (256,),
            "agent.v_max": 20.0,
            "agent.learning_rate": 3e-4,
            "replay.n_step": 3,
            "limiter.min_size": 5000,
        },
    ),
    Case(
        algorithm="impala",
        task="breakout",
        settings={
            "agent.hidden": (256, 256),
            "agent.learning_rate": 7e-4,
            "agent.lambda_": 0.9,
            "envs_per_actor": 16,
            "evaluate.interval_opt_steps": 200,
        },
    ),
    Case(algorithm="ppo", task="pong", preset="ppo-atari"),
    Case(
        algorithm="impala",
        task="pong",
        settings={
            "agent.network": small_image_network,
            "agent.precision": "bfloat16",
            "agent.learning_rate": 4e-4,
            "agent.lambda_": 0.95,
            "agent.normalize_advantages": True,
            "agent.normalize_obs": False,
            "agent.normalize_reward": False,
            "segment.length": 16,
            "segment.frame_stack": 4,
            "trainer.batch_size": 128,
            "trainer.sync_interval_opt_steps": 4,
            "evaluate.interval_opt_steps": 1500,
        },
    ),
    Case(algorithm="dqn", task="pong", preset="dqn-atari"),
)
"""In the order in which they run: the slowest last."""


OURS = "asyncrl"
PEERS = ("sb3", "tianshou")


@dataclass(frozen=True, slots=True, kw_only=True)
class Duel(Case):
    """A case that several frameworks train for the same number of environment steps."""

    env_steps: int
    peers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Peer -> settings in place of its script's."""

    sizes: Mapping[str, str] = field(default_factory=dict)
    """Side -> networks, batch size and other differences between updates, for readers."""

    per_update: Mapping[str, int] = field(default_factory=dict)
    """Side -> gradient steps in what it counts as one update; 1 by default."""

    def config(self, seed: int, max_env_steps: int = 0) -> RunConfig:
        """Return asyncrl's settings for a case: this number of steps, no evaluations."""
        return replace(
            super(Duel, self).config(seed),
            max_env_steps=max_env_steps or self.env_steps,
            stop_at_return=None,
            evaluate=EvaluationConfig(where="off"),
        )


_ZOO_DQN = {
    "agent.hidden": (256, 256),
    "agent.double": False,
    "agent.learning_rate": 2.3e-3,
    "agent.loss": "huber",
    "agent.tau": 0.0,
    "agent.target_interval_opt_steps": 128,
    "agent.exploration": EpsilonLadder(base=0.04, alpha=0.0, decay_env_steps=8000),
    "replay.n_step": 1,
    "trainer.batch_size": 64,
    "trainer.sync_interval_opt_steps": 16,
    "limiter.samples_per_insert": 32.0,
}
_PRESET_SAC = {
    "learning_rate": 3e-3,
    "tau": 0.02,
    "batch_size": 128,
    "learning_starts": 512,
    "gradient_steps": 4,
    "policy_kwargs": {"net_arch": [64, 64]},
    "n_envs": 16,
    "threads": 1,
}
_PRESET_SAC_MUJOCO = {
    "learning_rate": 3e-4,
    "learning_starts": 1000,
    "gradient_steps": 8,
    "n_envs": 8,
    "threads": 2,
}
_PRESET_TD3 = {**_PRESET_SAC, "gamma": 0.99, "buffer_size": 1_000_000, "noise_std": 0.1}
_PRESET_PPO = {
    "n_steps": 64,
    "n_envs": 16,
    "batch_size": 256,
    "n_epochs": 10,
    "gae_lambda": 0.95,
    "gamma": 0.99,
    "learning_rate": 1e-3,
    "clip_range": 0.2,
    "threads": 1,
}
_SMALL = "64x64, batches of 128"
_BATCHES_OF_256 = "64x64, batches of 256"

EQUAL: tuple[Duel, ...] = (
    Duel(
        algorithm="dqn",
        task="cartpole",
        env_steps=50_000,
        settings=_ZOO_DQN,
        peers={"sb3": {}},
        sizes=dict.fromkeys((OURS, "sb3"), "256x256, batches of 64"),
    ),
    Duel(
        algorithm="ppo",
        task="cartpole",
        env_steps=100_000,
        peers={"sb3": _PRESET_PPO},
        sizes=dict.fromkeys((OURS, "sb3"), _BATCHES_OF_256),
        per_update={OURS: 40, "sb3": 4},
    ),
    Duel(
        algorithm="sac",
        task="pendulum",
        env_steps=20_000,
        peers={"sb3": _PRESET_SAC},
        sizes=dict.fromkeys((OURS, "sb3"), _SMALL),
    ),
    Duel(
        algorithm="td3",
        task="pendulum",
        env_steps=20_000,
        settings={"agent.noise_ladder": 1.0},
        peers={"sb3": _PRESET_TD3},
        sizes=dict.fromkeys((OURS, "sb3"), _SMALL),
    ),
    Duel(
        algorithm="sac",
        task="halfcheetah",
        preset="sac-mujoco",
        env_steps=6_000,
        settings={"agent.critic_learning_rate": 3e-4, "agent.alpha_learning_rate": 3e-4},
        peers={"sb3": _PRESET_SAC_MUJOCO},
        sizes=dict.fromkeys((OURS, "sb3"), "256x256, batches of 256"),
    ),
)
"""Both sides have the same settings: of DQN those of the zoo, of the others asyncrl's preset, with
one learning rate where the peer has only one."""

_PENDULUM_SIZES = {
    "sac": {OURS: _SMALL, **dict.fromkeys(PEERS, "256x256, batches of 256")},
    "td3": {OURS: _SMALL, **dict.fromkeys(PEERS, "400x300, batches of 256")},
}

DUELS: tuple[Duel, ...] = (
    Duel(
        algorithm="ppo",
        task="cartpole",
        env_steps=100_000,
        peers={peer: {} for peer in PEERS},
        sizes=dict.fromkeys((OURS, *PEERS), _BATCHES_OF_256),
        per_update={OURS: 40},
    ),
    *(
        Duel(
            algorithm=algorithm,
            task="pendulum",
            env_steps=20_000,
            peers={peer: {} for peer in PEERS},
            sizes=_PENDULUM_SIZES[algorithm],
        )
        for algorithm in ("sac", "td3")
    ),
)
"""What the kept runs of each side's recommended settings are named by: asyncrl's preset, and the
peers' of the zoo, which are for these numbers of steps."""


def case_of(name: str, cases: Sequence[Case] = CASES) -> Case:
    """Return the case of this name."""
    for case in cases:
        if case.name == name:
            return case
    raise ValueError(f"there is no {name}; there are {', '.join(case.name for case in cases)}")


def missing(case: Case) -> str:
    """Return why a case cannot run here; empty if it can."""
    needs = TASKS[case.task].needs
    if needs and importlib.util.find_spec(needs) is None:
        return f"package {needs} missing"
    name = case.preset or case.algorithm
    return "" if name in preset_lines() else f"preset {name} missing"


def absent(duel: Duel, side: str) -> str:
    """Return why a side cannot run here; empty if it can."""
    if side == OURS:
        return missing(duel)
    return "" if python_of(side).exists() else f"no .peers/{side}"


def with_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """Return a config with other values under some dotted names."""
    for name, value in settings.items():
        config = _with(config, name, value)
    return config


def _with(config: Any, name: str, value: object) -> Any:  # noqa: ANN401  # any dataclass
    first, _, rest = name.partition(".")
    return replace(config, **{first: _with(getattr(config, first), rest, value) if rest else value})
