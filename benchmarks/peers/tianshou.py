"""Tianshou: collectors, prioritized replay, DQN, PPO, SAC and TD3.

They train with the settings that Stable-Baselines3 is tuned with, which are better than its
examples' own; PPO's learning rate and clipping range stay constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import torch
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.modelfree.sac import SAC, AutoAlpha, SACPolicy
from tianshou.algorithm.modelfree.td3 import TD3
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, PrioritizedReplayBuffer, ReplayBuffer, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from tianshou.exploration import GaussianNoise
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import (
    ContinuousActorDeterministic,
    ContinuousActorProbabilistic,
    ContinuousCritic,
)
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step
from torch import nn

from benchmarks.peers.interface import (
    ATARI,
    CARTPOLE,
    CHEETAH,
    PER,
    PER_BATCH,
    PER_ROWS,
    PIXEL_FEATURES,
    REPLAY_ROWS,
    SIZES,
    UPDATES,
    ZOO_DQN,
    ZOO_SAC,
    Request,
    Stage,
    Training,
    Work,
    by_turns,
    convolutions,
    make_env,
    make_rows,
    measure_once,
    once,
    prioritizing,
    stepping,
)

VECTOR_ENVS = {"dummy": DummyVectorEnv, "subproc": SubprocVectorEnv, "shmem": ShmemVectorEnv}


def make_envs(env_id: str, kind: str, n: int, wait: int = 0) -> Any:  # noqa: ANN401  # untyped
    """Return environments of one kind; they step on once `wait` of them have stepped."""
    return VECTOR_ENVS[kind]([partial(make_env, env_id)] * n, wait_num=wait or None)


def spaces_of(env_id: str) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Return the spaces of observations and of actions."""
    env = make_env(env_id)
    return env.observation_space, env.action_space


class PixelNet(nn.Module):
    """The convolutions of Mnih et al. (2015), then hidden layers of 64 and 64."""

    def __init__(self, n_actions: int) -> None:
        super().__init__()
        layers = [nn.Linear(PIXEL_FEATURES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
        self.layers = nn.Sequential(*convolutions(), *layers, nn.Linear(64, n_actions))

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[Any, Any]:  # noqa: ANN401
        """Return the values of actions."""
        return self.layers(torch.as_tensor(obs, dtype=torch.float32)), state


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNParts:
    """Settings of DQN."""

    observations: Any
    actions: Any
    hidden: tuple[int, ...]
    learning_rate: float = 1e-3
    target_every: int = 500
    gamma: float = 0.99
    epsilon: float = 0.1
    double: bool = False
    n_step: int = 1

    def build(self, model: nn.Module | None = None) -> DQN:
        """Build the algorithm."""
        policy = DiscreteQLearningPolicy(
            model=model
            or Net(
                state_shape=self.observations.shape,
                action_shape=self.actions.n,
                hidden_sizes=self.hidden,
            ),
            action_space=self.actions,
            observation_space=self.observations,
            eps_training=self.epsilon,
        )
        return DQN(
            policy=policy,
            optim=AdamOptimizerFactory(lr=self.learning_rate),
            gamma=self.gamma,
            target_update_freq=self.target_every,
            n_step_return_horizon=self.n_step,
            is_double=self.double,
            huber_loss_delta=1.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SACParts:
    """Settings of SAC."""

    observations: Any
    actions: Any
    hidden: tuple[int, ...]
    learning_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005

    def build(self) -> SAC:
        """Build the algorithm."""
        shape = {"state_shape": self.observations.shape, "hidden_sizes": self.hidden}
        actions = self.actions.shape
        policy = SACPolicy(
            actor=ContinuousActorProbabilistic(
                preprocess_net=Net(**shape),
                action_shape=actions,
                unbounded=True,
                conditioned_sigma=True,
            ),
            action_space=self.actions,
            observation_space=self.observations,
        )
        critics = [
            ContinuousCritic(preprocess_net=Net(**shape, action_shape=actions, concat=True))
            for _ in range(2)
        ]
        adam = AdamOptimizerFactory(lr=self.learning_rate)
        return SAC(
            policy=policy,
            policy_optim=adam,
            critic=critics[0],
            critic_optim=adam,
            critic2=critics[1],
            critic2_optim=adam,
            tau=self.tau,
            gamma=self.gamma,
            alpha=AutoAlpha(-float(np.prod(actions)), 0.0, adam),
        )


def make_td3(observations: Any, actions: Any, settings: Mapping[str, Any]) -> TD3:  # noqa: ANN401
    """Build TD3."""
    shape = {"state_shape": observations.shape, "hidden_sizes": settings["hidden"]}
    size = actions.shape
    policy = ContinuousDeterministicPolicy(
        actor=ContinuousActorDeterministic(
            preprocess_net=Net(**shape), action_shape=size, max_action=1.0
        ),
        exploration_noise=GaussianNoise(sigma=settings["noise_std"]),
        action_space=actions,
        observation_space=observations,
    )
    critics = [
        ContinuousCritic(preprocess_net=Net(**shape, action_shape=size, concat=True))
        for _ in range(2)
    ]
    adam = AdamOptimizerFactory(lr=settings["learning_rate"])
    return TD3(
        policy=policy,
        policy_optim=adam,
        critic=critics[0],
        critic_optim=adam,
        critic2=critics[1],
        critic2_optim=adam,
        gamma=settings["gamma"],
    )


def make_ppo(observations: Any, actions: Any, settings: Mapping[str, Any]) -> PPO:  # noqa: ANN401
    """Build PPO."""
    nets = [
        Net(
            state_shape=observations.shape,
            hidden_sizes=settings["hidden"],
            activation=nn.Tanh,
        )
        for _ in range(2)
    ]
    policy = DiscreteActorPolicy(
        actor=DiscreteActor(preprocess_net=nets[0], action_shape=actions.n, softmax_output=False),
        action_space=actions,
        observation_space=observations,
    )
    return PPO(
        policy=policy,
        critic=DiscreteCritic(preprocess_net=nets[1]),
        optim=AdamOptimizerFactory(lr=settings["learning_rate"]),
        eps_clip=settings["clip_range"],
        ent_coef=settings["ent_coef"],
        max_grad_norm=settings["max_grad_norm"],
        gae_lambda=settings["gae_lambda"],
        gamma=settings["gamma"],
    )


def make_buffer(rows: Mapping[str, Any]) -> ReplayBuffer:
    """Return a full buffer of these rows."""
    nothing = np.zeros_like(rows["terminated"])
    return ReplayBuffer.from_data(
        obs=rows["obs"],
        act=rows["action"],
        rew=rows["reward"],
        terminated=rows["terminated"],
        truncated=nothing,
        done=rows["terminated"],
        obs_next=rows["next_obs"],
    )


SAMPLING: dict[str, dict[str, Any]] = {
    CARTPOLE: {"kind": "dummy", "envs": 64, "rows": 65_536, "threads": 1},
    CHEETAH: {"kind": "shmem", "envs": 16, "rows": 65_536, "threads": 1},
    ATARI: {"kind": "shmem", "envs": 8, "rows": 8_192, "threads": 1},
}
ENV: dict[str, dict[str, Any]] = {
    CARTPOLE: {"kind": "dummy", "envs": 64, "threads": 1},
    CHEETAH: {"kind": "shmem", "envs": 16, "threads": 1},
    ATARI: {"kind": "shmem", "envs": 8, "threads": 1},
}

DQN_SETTINGS = {**ZOO_DQN, "double": False, "n_step": 1, "gamma": 0.99}
PPO_SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "clip_range": 0.2,
    "envs": 8,
    "env_steps": 256,
    "batch": 256,
    "epochs": 20,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "ent_coef": 0.0,
    "max_grad_norm": 0.5,
    "hidden": [64, 64],
    "threads": 1,
}
TD3_SETTINGS: dict[str, Any] = {
    **ZOO_SAC,
    "hidden": [400, 300],
    "gamma": 0.98,
    "noise_std": 0.1,
    "learning_starts": 10_000,
}
TURN_STEPS = 32


def sampling(asked: Request) -> Work:
    """Collect into a replay buffer."""
    observations, actions = spaces_of(asked.env)
    if isinstance(actions, gymnasium.spaces.Discrete):
        parts = DQNParts(observations=observations, actions=actions, hidden=(64, 64))
        algorithm = parts.build(PixelNet(int(actions.n)) if asked.env == ATARI else None)
    else:
        algorithm = SACParts(observations=observations, actions=actions, hidden=(64, 64)).build()
    n = asked.settings["envs"]
    collector = Collector(
        algorithm,
        make_envs(asked.env, asked.settings["kind"], n),
        VectorReplayBuffer(asked.settings["rows"], n),
        exploration_noise=True,
    )
    collector.reset()
    collect = _training_step(algorithm, lambda: collector.collect(n_step=TURN_STEPS * n))
    return Work(turn=lambda: int(collect().n_collected_steps), close=collector.close)


def env(asked: Request) -> Work:
    """Step environments with precomputed random actions."""
    n = int(asked.settings["envs"])
    envs = make_envs(asked.env, asked.settings["kind"], n)
    _, space = spaces_of(asked.env)
    space.seed(asked.seed)
    envs.reset()

    def step(action: Any) -> None:  # noqa: ANN401  # an array
        _, _, terminated, truncated, _ = envs.step(action)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            envs.reset(ended)

    return replace(
        stepping(step, lambda: np.array([space.sample() for _ in range(n)]), n), close=envs.close
    )


def updates(asked: Request) -> Work:
    """Optimise from a full replay buffer."""
    sizes = SIZES[asked.stage]
    observations = gymnasium.spaces.Box(-np.inf, np.inf, (sizes.obs,), np.float32)
    if asked.discrete:
        choices = gymnasium.spaces.Discrete(sizes.actions)
        algorithm: Any = DQNParts(
            observations=observations, actions=choices, hidden=sizes.hidden
        ).build()
    else:
        box = gymnasium.spaces.Box(-1.0, 1.0, (sizes.actions,), np.float32)
        algorithm = SACParts(observations=observations, actions=box, hidden=sizes.hidden).build()
    buffer = make_buffer(make_rows(sizes, asked.settings["rows"], discrete=asked.discrete))
    return Work(turn=once(_training_step(algorithm, lambda: algorithm.update(buffer, sizes.batch))))


def prioritized(asked: Request) -> Work:
    """Sample by priority, and update the sampled priorities."""
    replay = PrioritizedReplayBuffer(
        PER_ROWS, alpha=asked.settings["alpha"], beta=asked.settings["beta"]
    )
    replay.update(make_buffer(make_rows(SIZES["updates-dqn"], PER_ROWS, discrete=True)))
    return prioritizing(
        lambda: replay.sample(PER_BATCH),
        lambda sampled, errors: replay.update_weight(sampled[1], errors),
    )


def off_policy(asked: Request) -> Training:
    """Train DQN, SAC or TD3 with one environment."""
    settings = asked.settings
    observations, actions = spaces_of(asked.env)
    parts = {"observations": observations, "actions": actions, "hidden": settings["hidden"]}
    parts["learning_rate"] = settings["learning_rate"]
    if asked.discrete:
        of_dqn = {name: settings[name] for name in ("target_every", "double", "n_step", "gamma")}
        algorithm: Any = DQNParts(**parts, **of_dqn).build()
    elif asked.stage == "score-td3":
        algorithm = make_td3(observations, actions, settings)
    else:
        algorithm = SACParts(**parts).build()
    envs = make_envs(asked.env, "dummy", 1)
    envs.seed(asked.seed)
    buffer = VectorReplayBuffer(REPLAY_ROWS, 1)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    made = 0

    def collect() -> int:
        nonlocal made
        before = made
        if not made:
            collector.reset()
            collector.collect(n_step=settings["learning_starts"], random=True)
            made = settings["learning_starts"]
        if asked.discrete:
            left = 1.0 - made / settings["decay_env_steps"]
            algorithm.policy.set_eps_training(max(0.04, left))
        collector.collect(n_step=settings["env_steps"])
        made += settings["env_steps"]
        return int(made - before)

    run = by_turns(
        settings,
        _training_step(algorithm, collect),
        _training_step(algorithm, lambda: algorithm.update(buffer, settings["batch"])),
    )
    return Training(run=run, act=_greedy(algorithm, asked.stage))


def on_policy(asked: Request) -> Training:
    """Train PPO."""
    settings = asked.settings
    algorithm = make_ppo(*spaces_of(asked.env), settings)
    buffer = VectorReplayBuffer(4 * settings["env_steps"], settings["envs"])
    collector = Collector(algorithm, make_envs(asked.env, "dummy", settings["envs"]), buffer)

    def learn() -> int:
        steps = int(collector.collect(n_step=settings["env_steps"]).n_collected_steps)
        algorithm.update(buffer, settings["batch"], settings["epochs"])
        return steps

    turn = _training_step(algorithm, learn)

    def run(over: Callable[[int, int], bool], env_steps: int) -> None:
        collector.reset()
        made = learned = 0
        while not over(made, learned) and not 0 < env_steps <= made:
            made += turn()
            learned += settings["epochs"]
            collector.reset_buffer(keep_statistics=True)

    return Training(run=run, act=_greedy(algorithm, asked.stage))


def _training_step(algorithm: Any, work: Callable[[], Any]) -> Callable[[], Any]:  # noqa: ANN401
    """Train as the library's trainers do."""

    def turn() -> Any:  # noqa: ANN401  # whatever it returns
        with policy_within_training_step(algorithm.policy):
            return work()

    return turn


def _greedy(algorithm: Any, stage: str) -> Any:  # noqa: ANN401  # untyped where checked
    policy = algorithm.policy

    def act(obs: Any) -> Any:  # noqa: ANN401  # the same
        with torch.no_grad():
            match stage:
                case "score-dqn":
                    return policy.model(obs)[0].argmax(-1).numpy()
                case "score-ppo":
                    return policy.actor(obs)[0].argmax(-1).numpy()
                case "score-td3":
                    return policy.map_action(policy.actor(obs)[0].numpy())
                case _:
                    return policy.map_action(policy.actor(obs)[0][0].tanh().numpy())

    return act


if __name__ == "__main__":
    measure_once(
        "tianshou",
        version("tianshou"),
        __doc__,
        {
            "sampling": Stage(sampling, SAMPLING),
            "env": Stage(env, ENV),
            "updates-sac": Stage(updates, UPDATES),
            "updates-dqn": Stage(updates, UPDATES),
            "per": Stage(prioritized, PER),
            "score-dqn": Stage(off_policy, DQN_SETTINGS),
            "score-sac": Stage(off_policy, ZOO_SAC),
            "score-td3": Stage(off_policy, TD3_SETTINGS),
            "score-ppo": Stage(on_policy, PPO_SETTINGS),
        },
    )
