"""The settings that a run starts from: those of a preset, or defaults for a custom agent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.core.agent import is_agent_config
from asyncrl.core.declared import settings_of
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import SegmentConfig
from asyncrl.core.settings import did_you_mean, from_plain, load_object, object_path, to_plain
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.replay.hindsight import HindsightReplayConfig
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.sequences import PrioritizedSequenceReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig, RunConfig, offline_defaults
from asyncrl.run.yaml_file import check_names, read_yaml
from asyncrl.transport.zeromq_socket import ZmqTransportConfig

ReplayKind = Literal["uniform", "prioritized", "hindsight"]

REPLAYS: Mapping[
    str, type[UniformReplayConfig | PrioritizedReplayConfig | HindsightReplayConfig]
] = {
    "uniform": UniformReplayConfig,
    "prioritized": PrioritizedReplayConfig,
    "hindsight": HindsightReplayConfig,
}
"""The kinds of replay that `--replay` accepts."""


def appo() -> RunConfig:
    """PPO with V-trace, asynchronous: actors never wait for a new model.

    Corrects for actions of models that are some batches old.
    """
    return replace(_ppo("vtrace"), transport=ZmqTransportConfig())


def awac() -> RunConfig:
    """AWAC, offline: learns from `--data`, more from actions that were better than average."""
    from asyncrl.agents.awac import AWACConfig

    return offline_defaults(AWACConfig())


def bc() -> RunConfig:
    """Behavioural cloning, offline: learns from `--data` to imitate its actions."""
    from asyncrl.agents.bc import BCConfig

    return offline_defaults(BCConfig())


def c51() -> RunConfig:
    """C51 for small problems with discrete actions: distributions of returns; CartPole in seconds.

    For other environments set v_min and v_max to the range of their returns.
    """
    from asyncrl.agents.c51 import C51Config

    return replace(dqn(), agent=C51Config(v_min=0.0, v_max=100.0, double=True))


def crossq() -> RunConfig:
    """CrossQ for small problems with continuous actions, such as Pendulum.

    One optimisation step for each environment step.
    """
    from asyncrl.agents.crossq import CrossQConfig

    return RunConfig(
        agent=CrossQConfig(hidden=(64, 64), critic_hidden=(64, 64)),
        env="Pendulum-v1",
        envs_per_actor=4,
        segment=SegmentConfig(length=4),
        limiter=RateLimiterConfig(samples_per_insert=128.0, min_size=1000),
        trainer=AsyncTrainerConfig(sync_interval_opt_steps=10),
        evaluate=EvaluationConfig(interval_opt_steps=250),
    )


def crossq_mujoco() -> RunConfig:
    """CrossQ for robots in MuJoCo; HalfCheetah in a minute or two.

    One optimisation step for each environment step; the replay takes 0.1 GB for HalfCheetah.
    """
    from asyncrl.agents.crossq import CrossQConfig

    start = sac_mujoco()
    evaluate = replace(start.evaluate, interval_opt_steps=2500)
    return replace(start, agent=CrossQConfig(), evaluate=evaluate)


def discrete_sac() -> RunConfig:
    """Soft actor-critic for small problems with discrete actions; CartPole in seconds."""
    from asyncrl.agents.discrete_sac import DiscreteSACConfig

    return RunConfig(
        agent=DiscreteSACConfig(
            target_entropy_share=0.8,
            initial_alpha=0.1,
            actor_learning_rate=5e-4,
            critic_learning_rate=2e-3,
            alpha_learning_rate=1e-3,
            tau=0.05,
        ),
        envs_per_actor=4,
        segment=SegmentConfig(length=16),
        replay=UniformReplayConfig(n_step=3),
        limiter=RateLimiterConfig(samples_per_insert=4.0),
        trainer=AsyncTrainerConfig(sync_interval_opt_steps=5),
        evaluate=EvaluationConfig(interval_opt_steps=250),
    )


def dqn() -> RunConfig:
    """DQN for small problems with discrete actions; CartPole in seconds."""
    from asyncrl.agents.dqn import DQNConfig

    return RunConfig(
        agent=DQNConfig(),
        envs_per_actor=16,
        segment=SegmentConfig(length=16),
        replay=UniformReplayConfig(n_step=5),
        limiter=RateLimiterConfig(samples_per_insert=4.0),
        trainer=AsyncTrainerConfig(batch_size=256, sync_interval_opt_steps=5),
        evaluate=EvaluationConfig(interval_opt_steps=250),
    )


def dqn_atari() -> RunConfig:
    """DQN for Atari games, from pixels.

    Follows Mnih et al. (2015) in what is stored and how often it is sampled, Ape-X in the rest.
    """
    from asyncrl.agents.dqn import DQNConfig
    from asyncrl.agents.parts.exploration import EpsilonLadder

    return RunConfig(
        agent=DQNConfig(
            hidden=(512,),
            learning_rate=1e-4,
            loss="huber",
            tau=0.0,
            target_interval_opt_steps=2000,
            exploration=EpsilonLadder(decay_env_steps=100_000),
        ),
        env="ALE/Pong-v5",
        segment=SegmentConfig(length=64, frame_stack=4),
        replay=UniformReplayConfig(capacity=200_000, n_step=3),
        limiter=RateLimiterConfig(samples_per_insert=8.0, min_size=10_000),
        trainer=AsyncTrainerConfig(batch_size=32),
        evaluate=EvaluationConfig(interval_opt_steps=10_000),
    )


def dqn_mountaincar() -> RunConfig:
    """DQN for MountainCar and others where exploration must repeat an action."""
    from asyncrl.agents.dqn import DQNConfig
    from asyncrl.agents.parts.exploration import EpsilonLadder

    start = dqn()
    exploration = EpsilonLadder(decay_env_steps=50_000, duration_env_steps=16)
    return replace(
        start,
        agent=DQNConfig(normalize_obs=True, exploration=exploration),
        env="MountainCar-v0",
        limiter=RateLimiterConfig(samples_per_insert=16.0),
        trainer=replace(start.trainer, batch_size=128),
        evaluate=replace(start.evaluate, interval_opt_steps=500),
    )


def dqn_toy() -> RunConfig:
    """Tabular DQN for toy text such as Taxi, FrozenLake, CliffWalking and Blackjack.

    Without hidden layers each action has its own values, and learning in one state changes no
    other. Exploration begins at random. One-step returns have no error from random actions.
    Evaluations cut an episode after 200 steps, since those of CliffWalking have no limit.
    """
    from asyncrl.agents.dqn import DQNConfig
    from asyncrl.agents.parts.exploration import EpsilonLadder

    return RunConfig(
        agent=DQNConfig(hidden=(), exploration=EpsilonLadder(decay_env_steps=50_000)),
        env="Taxi-v4",
        envs_per_actor=16,
        segment=SegmentConfig(length=4),
        limiter=RateLimiterConfig(samples_per_insert=8.0),
        trainer=AsyncTrainerConfig(batch_size=64, sync_interval_opt_steps=20),
        evaluate=EvaluationConfig(
            interval_opt_steps=1000,
            play=EpisodeEvaluatorConfig(episodes=100, max_episode_steps=200),
        ),
    )


def iql() -> RunConfig:
    """IQL, offline: learns from `--data` without evaluating actions outside the data."""
    from asyncrl.agents.iql import IQLConfig

    return offline_defaults(IQLConfig())


def impala() -> RunConfig:
    """IMPALA for small problems with discrete actions; CartPole in seconds.

    Trajectories are long enough for returns of many steps; rewards are normalised by the scale of
    returns.
    """
    from asyncrl.agents.impala import IMPALAConfig

    return RunConfig(
        agent=IMPALAConfig(learning_rate=2e-3, normalize_obs=True, normalize_reward=True),
        envs_per_actor=8,
        segment=SegmentConfig(length=64),
        replay=TrajectoryQueueConfig(),
        limiter=RateLimiterConfig(samples_per_insert=1.0),
        trainer=AsyncTrainerConfig(batch_size=512, sync_interval_opt_steps=1),
        evaluate=EvaluationConfig(interval_opt_steps=20),
    )


def iqn() -> RunConfig:
    """IQN for small problems with discrete actions: quantiles of returns; CartPole in seconds."""
    from asyncrl.agents.iqn import IQNConfig

    return replace(dqn(), agent=IQNConfig(n_acting_quantiles=8))


def ppo() -> RunConfig:
    """PPO for cheap steps, discrete or continuous: CartPole in seconds, landers, Ant.

    Close to on-policy: batches come from models that are few versions old, since little experience
    is in flight. It learns from each batch eight times.
    """
    return _ppo("gae")


def _ppo(correction: Literal["gae", "vtrace"]) -> RunConfig:
    from asyncrl.agents.ppo import PPOConfig

    return RunConfig(
        agent=PPOConfig(
            initial_log_std=-1.0,
            correction=correction,
            epochs=8,
            minibatches=8,
            learning_rate=6e-4,
            normalize_obs=True,
        ),
        envs_per_actor=32,
        segment=SegmentConfig(length=64),
        transport=ZmqTransportConfig(window=1),
        replay=TrajectoryQueueConfig(),
        limiter=RateLimiterConfig(samples_per_insert=1.0),
        trainer=AsyncTrainerConfig(batch_size=4096, sync_interval_opt_steps=1),
        evaluate=EvaluationConfig(interval_opt_steps=3),
    )


def ppo_atari() -> RunConfig:
    """PPO for Atari games and other pictures whose steps are cheap.

    A small network, many gradient steps on small batches of many games, and pictures without what
    never moves in them. Segments are short, so that experience is fresh. Where steps are dear,
    `dqn-atari` learns more from each.
    """
    from asyncrl.agents.parts.networks import small_image_network
    from asyncrl.agents.ppo import PPOConfig

    return replace(
        ppo(),
        agent=PPOConfig(
            network=small_image_network,
            shared_torso=True,
            precision="auto",
            epochs=3,
            learning_rate=4e-4,
            value_weight=0.1,
            entropy_weight=0.01,
            normalize_obs=True,
        ),
        env="ALE/Pong-v5",
        envs_per_actor=16,
        segment=SegmentConfig(length=16, frame_stack=4),
        trainer=AsyncTrainerConfig(batch_size=1024, sync_interval_opt_steps=1),
    )


def ppo_mujoco() -> RunConfig:
    """PPO for robots whose steps are cheap and that cannot fall; HalfCheetah in seconds.

    Smaller batches and larger steps. Robots that can fall learn to stand still this way:
    `ppo-walker` and `ppo` are for them.
    """
    from asyncrl.agents.ppo import PPOConfig

    start = ppo()
    return replace(
        start,
        agent=PPOConfig(
            initial_log_std=-1.0,
            epochs=5,
            minibatches=4,
            learning_rate=8e-4,
            normalize_obs=True,
            normalize_reward=True,
            normalize_values=False,
        ),
        env="HalfCheetah-v5",
        segment=SegmentConfig(length=32),
        trainer=replace(start.trainer, batch_size=2048),
        evaluate=replace(start.evaluate, interval_opt_steps=10),
    )


def ppo_walker() -> RunConfig:
    """PPO for robots on one or two legs whose steps are cheap; Hopper in half a minute.

    `ppo` with more exploration: with little of it at first they learn to stand still.
    """
    start = ppo()
    agent: Any = start.agent
    return replace(start, agent=replace(agent, initial_log_std=0.0), env="Hopper-v5")


_R2D2_BURN_IN = 8


def r2d2() -> RunConfig:
    """R2D2, a recurrent DQN, for small problems that are partially observable."""
    from asyncrl.agents.r2d2 import R2D2Config

    return RunConfig(
        agent=R2D2Config(burn_in=_R2D2_BURN_IN),
        envs_per_actor=4,
        segment=SegmentConfig(length=16),
        replay=PrioritizedSequenceReplayConfig(
            capacity=100_000, sequence_length=16, burn_in=_R2D2_BURN_IN, stride=8, n_step=3
        ),
        limiter=RateLimiterConfig(samples_per_insert=8.0, min_size=125),
        trainer=AsyncTrainerConfig(batch_size=32, sync_interval_opt_steps=20),
        evaluate=EvaluationConfig(interval_opt_steps=200),
    )


def rainbow() -> RunConfig:
    """Rainbow for small problems with discrete actions: DQN with all of its improvements.

    For other environments set v_min and v_max to the range of their returns.
    """
    from asyncrl.agents.rainbow import RainbowConfig

    replay = PrioritizedReplayConfig(n_step=5)
    return replace(dqn(), agent=RainbowConfig(v_min=0.0, v_max=100.0), replay=replay)


def sac() -> RunConfig:
    """Soft actor-critic for small problems with continuous actions; Pendulum in seconds."""
    from asyncrl.agents.sac import SACConfig

    return RunConfig(
        agent=SACConfig(
            hidden=(64, 64),
            actor_learning_rate=3e-3,
            critic_learning_rate=3e-3,
            alpha_learning_rate=3e-3,
            tau=0.02,
            random_env_steps=500,
        ),
        env="Pendulum-v1",
        segment=SegmentConfig(length=16),
        limiter=RateLimiterConfig(samples_per_insert=32.0, min_size=512),
        trainer=AsyncTrainerConfig(sync_interval_opt_steps=20),
        evaluate=EvaluationConfig(interval_opt_steps=250),
    )


def sac_goals() -> RunConfig:
    """Soft actor-critic with hindsight, for robots with goals; FetchReach in a minute."""
    from asyncrl.agents.sac import SACConfig

    return RunConfig(
        agent=SACConfig(
            hidden=(64, 64),
            actor_learning_rate=1e-3,
            critic_learning_rate=1e-3,
            tau=0.02,
            random_env_steps=500,
            normalize_obs=True,
        ),
        env="gymnasium_robotics:FetchReach-v4",
        envs_per_actor=4,
        segment=SegmentConfig(length=50),
        replay=HindsightReplayConfig(gamma=0.95),
        limiter=RateLimiterConfig(samples_per_insert=256.0, min_size=600),
        trainer=AsyncTrainerConfig(batch_size=256, sync_interval_opt_steps=10),
        evaluate=EvaluationConfig(interval_opt_steps=500),
    )


def sac_mountaincar() -> RunConfig:
    """SAC for MountainCarContinuous and others where exploration must repeat an action.

    Random actions that last for 15 steps reach the goal in 4 of 5 episodes.
    """
    from asyncrl.agents.sac import SACConfig

    agent = SACConfig(
        hidden=(64, 64),
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        alpha_learning_rate=1e-3,
        tau=0.02,
        noise_correlation_env_steps=15.0,
        random_env_steps=10_000,
    )
    replay = UniformReplayConfig(n_step=5)
    return replace(sac(), agent=agent, replay=replay, env="MountainCarContinuous-v0")


def sac_mujoco() -> RunConfig:
    """Soft actor-critic for robots in MuJoCo; HalfCheetah in minutes.

    One optimisation step for each environment step; the replay takes 0.1 GB for HalfCheetah.
    """
    from asyncrl.agents.sac import SACConfig

    return RunConfig(
        agent=SACConfig(),
        env="HalfCheetah-v5",
        envs_per_actor=4,
        segment=SegmentConfig(length=16),
        replay=UniformReplayConfig(capacity=1_000_000),
        limiter=RateLimiterConfig(samples_per_insert=256.0, min_size=1000),
        trainer=AsyncTrainerConfig(batch_size=256, sync_interval_opt_steps=10),
        evaluate=EvaluationConfig(interval_opt_steps=5000),
    )


def td3() -> RunConfig:
    """TD3 for small problems with continuous actions; Pendulum in seconds.

    Each environment explores with a different amount of noise.
    """
    from asyncrl.agents.td3 import TD3Config

    agent = TD3Config(
        hidden=(64, 64),
        actor_learning_rate=3e-3,
        critic_learning_rate=3e-3,
        tau=0.02,
        random_env_steps=500,
        noise_ladder=2.0,
    )
    return replace(sac(), agent=agent)


def td3_mujoco() -> RunConfig:
    """TD3 for robots in MuJoCo, such as HalfCheetah.

    One optimisation step for each environment step; the replay takes 0.1 GB for HalfCheetah.
    """
    from asyncrl.agents.td3 import TD3Config

    agent = TD3Config(
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        random_env_steps=5000,
        noise_ladder=2.0,
    )
    return replace(sac_mujoco(), agent=agent)


PRESETS: Mapping[str, Callable[[], RunConfig]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        appo,
        awac,
        bc,
        c51,
        crossq,
        crossq_mujoco,
        discrete_sac,
        dqn,
        dqn_atari,
        dqn_mountaincar,
        dqn_toy,
        impala,
        iql,
        iqn,
        ppo,
        ppo_atari,
        ppo_mujoco,
        ppo_walker,
        r2d2,
        rainbow,
        sac,
        sac_goals,
        sac_mountaincar,
        sac_mujoco,
        td3,
        td3_mujoco,
    )
}
"""The presets of `asyncrl train` by name."""


def preset(name: str) -> RunConfig:
    """Return all settings of a run: agent, replay, limiter and the rest, which fit each other.

        config = preset("ppo")
        train(config)

    Names are those of `asyncrl train`, see `preset_lines`. `module:Class`, the path of an agent's
    config, gets the other settings from the preset of its nearest base class, or else the defaults.
    `dataclasses.replace` changes settings.
    """
    if name in PRESETS:
        return PRESETS[name]()
    if ":" not in name:
        raise ConfigError(
            f"unknown agent {name!r}; use {', '.join(PRESETS)}, or module:Class of a custom agent "
            f"config{did_you_mean(name, PRESETS)}"
        )
    make = load_object(name)
    if not callable(make):
        raise ConfigError(f"{name} is not a class of agent configs, but {make!r:.80}")
    if not is_agent_config(make) and hasattr(make, "act"):
        raise ConfigError(
            f"{name} is an agent; name its config, the class whose `build` makes such agents"
        )
    agent = make()
    if not is_agent_config(agent):
        raise ConfigError(
            f"{name} makes {type(agent).__name__}, which is not an agent config: those have the "
            "methods build, build_policy and extra_columns, see asyncrl/core/agent.py"
        )
    base = _nearest_preset(type(agent))
    return replace(PRESETS[base](), agent=agent) if base else RunConfig(agent=agent)


def _nearest_preset(cls: type) -> str | None:
    """Return the shortest name of a preset whose agent is of this class, or of its nearest base."""
    classes = {name: type(make().agent) for name, make in PRESETS.items()}
    for base in cls.__mro__:
        if names := [name for name, made in classes.items() if made is base]:
            return min(names, key=len)
    return None


def _nearest_class(cls: type) -> type | None:
    """Return the class of the agent in that preset."""
    name = _nearest_preset(cls)
    return type(PRESETS[name]().agent) if name else None


def preset_like(config: RunConfig) -> str:
    """Return the preset whose agent differs least from a config's, or else the agent's path."""
    agent: Any = config.agent
    cls = type(agent)
    agents: dict[str, Any] = {name: preset(name).agent for name in PRESETS}
    alike = {name: one for name, one in agents.items() if type(one) is cls}

    def distance(name: str) -> tuple[int, int]:
        differs = [getattr(alike[name], f.name) != getattr(agent, f.name) for f in fields(cls)]
        return sum(differs), len(name)

    return min(alike, key=distance, default=f"{cls.__module__}:{cls.__qualname__}")


def preset_lines() -> dict[str, str]:
    """Return the name of each preset and its description, the first line of its docstring."""
    return {name: (make.__doc__ or "").partition("\n")[0] for name, make in PRESETS.items()}


def with_replay(plain: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the plain form of a replay of this kind; settings that both kinds have are kept."""
    cls, now = REPLAYS[kind], load_object(plain["type"])
    if now not in REPLAYS.values():
        raise ConfigError(
            f"--replay {kind} would replace {getattr(now, '__name__', now)}, which the agent "
            "needs for its batches; remove the flag"
        )
    shared = {name: plain[name] for name in settings_of(cls) if name in plain}
    return {"type": object_path(cls), **shared}


Value = Any  # a setting's name


def load_over(name: str, path: Path) -> RunConfig:
    """Load a file; settings that it lacks come from the preset of this name.

    A section that names another class than the preset's, such as another replay, begins with that
    class's defaults. The agent must be of the preset's class or of a subclass, and no other preset
    may be nearer to it.
    """
    plain = over_preset(name, path)
    try:
        return from_plain(RunConfig, plain)
    except ConfigError as error:
        raise ConfigError(f"cannot load {path}: {error}") from error


def over_preset(name: str, path: Path) -> dict[str, Any]:
    """Return the plain form of a preset, overridden by a file, as `load_over` loads it."""
    start = preset(name)
    try:
        data = read_yaml(path)
        check_names(data)
        _check_agent(name, start, data)
    except ConfigError as error:
        raise ConfigError(f"cannot load {path}: {error}") from error
    if not isinstance(data, Mapping | None):
        raise ConfigError(f"cannot load {path}: expected settings, as in actors: 4, got {data!r}")
    plain: dict[str, Any] = _over(start, to_plain(start), data or {})
    return plain


def _check_agent(name: str, start: RunConfig, data: Value) -> None:
    """Reject a file about another agent before settings of the two are mixed."""
    held: Value = None
    with suppress(ConfigError):  # reported with its place when the data is loaded
        held = load_object(_type_of_agent(data) or "")
    own = type(start.agent)
    if isinstance(held, type) and held is not own and _nearest_class(held) is not own:
        raise ConfigError(
            f"it trains {held.__name__}, but {name} is {own.__name__}; name the agent of the file, "
            "or omit the name"
        )


def agent_in(path: Path) -> str | None:
    """Return the path of the agent's config in a file, if it has one."""
    return _type_of_agent(read_yaml(path))


def _type_of_agent(data: Value) -> str | None:
    agent = data.get("agent") if isinstance(data, Mapping) else None
    found = agent.get("type") if isinstance(agent, Mapping) else None
    return found if isinstance(found, str) else None


def _over(config: Value, plain: Value, data: Value) -> Value:
    """Return the plain form of a config, overridden by a file's data."""
    if not (isinstance(data, Mapping) and dataclasses.is_dataclass(config)):
        return data
    if "type" in data and not _is_made_by(data["type"], config):
        return data
    inner = {
        name: _over(getattr(config, name), plain[name], value)
        for name, value in data.items()
        if name in plain and hasattr(config, name)
    }
    return {**plain, **data, **inner}


def _is_made_by(path: Value, config: Value) -> bool:
    with suppress(ConfigError):  # reported with its place when the data is loaded
        return isinstance(path, str) and load_object(path) is type(config)
    return False
