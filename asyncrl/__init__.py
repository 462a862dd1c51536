"""Asynchronous actor-learner training of PyTorch agents on Gymnasium environments.

The public names, each loaded when it is first used: `import asyncrl` itself loads neither torch
nor zmq nor gymnasium. Implementations are imported from where they live, for instance
`from asyncrl.agents.dqn import DQNConfig`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncrl.actor.actor import Actor
    from asyncrl.actor.evaluator import EpisodeEvaluator, EpisodeEvaluatorConfig
    from asyncrl.actor.step_processor import OneStep, Step, StepProcessor
    from asyncrl.actor.trajectory_processor import (
        ReturnToGo,
        Trajectories,
        Trajectory,
        TrajectoryConfig,
    )
    from asyncrl.checkpoint.checkpoint import Checkpointer
    from asyncrl.core.agent import (
        Act,
        Agent,
        AgentConfig,
        Policy,
        PolicyContext,
        SyncModel,
        TellsPriorities,
    )
    from asyncrl.core.callback import Callback, Training
    from asyncrl.core.env import BatchEnv, EnvSpec
    from asyncrl.core.errors import (
        ActorFailed,
        AsyncRLError,
        CheckpointError,
        ConfigError,
        EnvironmentFault,
        NonFiniteModel,
        OutOfMemory,
        Refused,
        TransportClosed,
        TransportError,
        WireError,
    )
    from asyncrl.core.evaluator import Evaluation, Evaluator
    from asyncrl.core.interrupter import Interrupter
    from asyncrl.core.launcher import Launcher
    from asyncrl.core.messages import ActorReport, Experience, ModelInfo
    from asyncrl.core.recorder import Record, Recorder
    from asyncrl.core.replay_buffer import ReplayBuffer
    from asyncrl.core.segment import SegmentConfig
    from asyncrl.core.transport import ActorLink, LearnerLink, Transport
    from asyncrl.learner.async_trainer import AsyncTrainer, AsyncTrainerConfig, CollectThenTrain
    from asyncrl.learner.rate_limiter import RateLimiter, RateLimiterConfig
    from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy, ReplayBufferProxyConfig
    from asyncrl.supervision.actor_manager import ActorManager, ActorManagerConfig
    from asyncrl.supervision.restart_policy import RestartPolicyConfig
    from asyncrl.training.asynchronous import build_async_trainer, train_async
    from asyncrl.training.config import AsyncConfig, EvaluationConfig
    from asyncrl.training.offline import (
        OfflineConfig,
        OfflineTrainer,
        build_offline_trainer,
        train_from_data,
    )
    from asyncrl.training.presets import preset
    from asyncrl.training.run import build_trainer
    from asyncrl.training.run_config import RunConfig
    from asyncrl.training.saved_model import load_policy
    from asyncrl.training.synchronous import (
        SyncConfig,
        Trainer,
        TrainerConfig,
        build_sync_trainer,
        train_sync,
    )

__version__ = "0.1.0"

__all__ = [
    "Act",
    "Actor",
    "ActorFailed",
    "ActorLink",
    "ActorManager",
    "ActorManagerConfig",
    "ActorReport",
    "Agent",
    "AgentConfig",
    "AsyncConfig",
    "AsyncRLError",
    "AsyncTrainer",
    "AsyncTrainerConfig",
    "BatchEnv",
    "Callback",
    "CheckpointError",
    "Checkpointer",
    "CollectThenTrain",
    "ConfigError",
    "EnvSpec",
    "EnvironmentFault",
    "EpisodeEvaluator",
    "EpisodeEvaluatorConfig",
    "Evaluation",
    "EvaluationConfig",
    "Evaluator",
    "Experience",
    "Interrupter",
    "Launcher",
    "LearnerLink",
    "ModelInfo",
    "NonFiniteModel",
    "OfflineConfig",
    "OfflineTrainer",
    "OneStep",
    "OutOfMemory",
    "Policy",
    "PolicyContext",
    "RateLimiter",
    "RateLimiterConfig",
    "Record",
    "Recorder",
    "Refused",
    "ReplayBuffer",
    "ReplayBufferProxy",
    "ReplayBufferProxyConfig",
    "RestartPolicyConfig",
    "ReturnToGo",
    "RunConfig",
    "SegmentConfig",
    "Step",
    "StepProcessor",
    "SyncConfig",
    "SyncModel",
    "TellsPriorities",
    "Trainer",
    "TrainerConfig",
    "Training",
    "Trajectories",
    "Trajectory",
    "TrajectoryConfig",
    "Transport",
    "TransportClosed",
    "TransportError",
    "WireError",
    "build_async_trainer",
    "build_offline_trainer",
    "build_sync_trainer",
    "build_trainer",
    "load_policy",
    "preset",
    "train_async",
    "train_from_data",
    "train_sync",
]

_HOMES = {
    "actor.actor": ["Actor"],
    "actor.evaluator": ["EpisodeEvaluator", "EpisodeEvaluatorConfig"],
    "actor.step_processor": ["OneStep", "Step", "StepProcessor"],
    "actor.trajectory_processor": ["ReturnToGo", "Trajectories", "Trajectory", "TrajectoryConfig"],
    "checkpoint.checkpoint": ["Checkpointer"],
    "core.agent": [
        "Act",
        "Agent",
        "AgentConfig",
        "Policy",
        "PolicyContext",
        "SyncModel",
        "TellsPriorities",
    ],
    "core.callback": ["Callback", "Training"],
    "core.env": ["BatchEnv", "EnvSpec"],
    "core.errors": [
        "ActorFailed",
        "AsyncRLError",
        "CheckpointError",
        "ConfigError",
        "EnvironmentFault",
        "NonFiniteModel",
        "OutOfMemory",
        "Refused",
        "TransportClosed",
        "TransportError",
        "WireError",
    ],
    "core.evaluator": ["Evaluation", "Evaluator"],
    "core.interrupter": ["Interrupter"],
    "core.launcher": ["Launcher"],
    "core.messages": ["ActorReport", "Experience", "ModelInfo"],
    "core.recorder": ["Record", "Recorder"],
    "core.replay_buffer": ["ReplayBuffer"],
    "core.segment": ["SegmentConfig"],
    "core.transport": ["ActorLink", "LearnerLink", "Transport"],
    "learner.async_trainer": ["AsyncTrainer", "AsyncTrainerConfig", "CollectThenTrain"],
    "learner.rate_limiter": ["RateLimiter", "RateLimiterConfig"],
    "learner.replay_buffer_proxy": ["ReplayBufferProxy", "ReplayBufferProxyConfig"],
    "supervision.actor_manager": ["ActorManager", "ActorManagerConfig"],
    "supervision.restart_policy": ["RestartPolicyConfig"],
    "training.asynchronous": ["build_async_trainer", "train_async"],
    "training.config": ["AsyncConfig", "EvaluationConfig"],
    "training.offline": [
        "OfflineConfig",
        "OfflineTrainer",
        "build_offline_trainer",
        "train_from_data",
    ],
    "training.presets": ["preset"],
    "training.run": ["build_trainer"],
    "training.run_config": ["RunConfig"],
    "training.saved_model": ["load_policy"],
    "training.synchronous": [
        "SyncConfig",
        "Trainer",
        "TrainerConfig",
        "build_sync_trainer",
        "train_sync",
    ],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Load the home of a public name and keep its names here (PEP 562)."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'asyncrl' has no attribute {name!r}")
    module = importlib.import_module(f"asyncrl.{home}")
    # All of them: a home that is called like one of its names would stand here in that one's place.
    globals().update({each: getattr(module, each) for each in _HOMES[home]})
    return globals()[name]


def __dir__() -> list[str]:
    """List the names that are loaded and those that are not yet."""
    return sorted({*globals(), *__all__})
