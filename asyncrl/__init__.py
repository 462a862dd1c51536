"""Asynchronous actor-learner training of PyTorch agents on Gymnasium environments.

The public names, each loaded when it is first used: `import asyncrl` itself loads neither torch
nor zmq nor gymnasium. `__init__.pyi` says the same to type checkers and editors. Everything else is
imported from where it lives, for instance `from asyncrl.agents.dqn import DQNConfig`.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

_HOMES = {
    "Act": "asyncrl.core.agent",
    "ActorFailed": "asyncrl.core.errors",
    "ActorManager": "asyncrl.fleet.actor_manager",
    "ActorManagerConfig": "asyncrl.fleet.config",
    "ActorSource": "asyncrl.learner.actor_source",
    "Agent": "asyncrl.core.agent",
    "AsyncRLError": "asyncrl.core.errors",
    "AsyncTrainer": "asyncrl.learner.async_trainer",
    "AsyncTrainerConfig": "asyncrl.learner.config",
    "Callback": "asyncrl.core.callback",
    "CheckpointError": "asyncrl.core.errors",
    "ColumnSpec": "asyncrl.core.segment",
    "ConfigError": "asyncrl.core.errors",
    "DataSource": "asyncrl.learner.source",
    "EnvConfig": "asyncrl.envs.gym",
    "EnvSpec": "asyncrl.core.env",
    "EnvironmentFault": "asyncrl.core.errors",
    "EpisodeEvaluatorConfig": "asyncrl.actor.evaluator",
    "EpsilonLadder": "asyncrl.agents.parts.exploration",
    "Evaluation": "asyncrl.core.evaluator",
    "EvaluationConfig": "asyncrl.run.run_config",
    "Evaluator": "asyncrl.core.evaluator",
    "HindsightReplayConfig": "asyncrl.replay.hindsight",
    "HostsConfig": "asyncrl.fleet.config",
    "MaxEnvSteps": "asyncrl.learner.stop_conditions",
    "MaxOptSteps": "asyncrl.learner.stop_conditions",
    "MaxSeconds": "asyncrl.learner.stop_conditions",
    "MemoryRecorder": "asyncrl.recorders.memory",
    "ModelInfo": "asyncrl.core.messages",
    "Observer": "asyncrl.learner.observer",
    "Parts": "asyncrl.run.parts",
    "Policy": "asyncrl.core.agent",
    "PolicyContext": "asyncrl.core.agent",
    "PrioritizedReplayConfig": "asyncrl.replay.prioritized",
    "PrioritizedSequenceReplayConfig": "asyncrl.replay.sequences",
    "RateLimiterConfig": "asyncrl.learner.config",
    "RayConfig": "asyncrl.fleet.config",
    "ReachesUpperBound": "asyncrl.learner.stop_conditions",
    "RecordConfig": "asyncrl.learner.run_services",
    "Recorder": "asyncrl.core.recorder",
    "ReplayBufferProxy": "asyncrl.learner.replay_buffer_proxy",
    "ReplayedTrainer": "asyncrl.extensions.order.replaying",
    "RunConfig": "asyncrl.run.run_config",
    "SaveConfig": "asyncrl.learner.run_services",
    "Schedule": "asyncrl.agents.parts.schedules",
    "SegmentConfig": "asyncrl.core.segment",
    "SequenceReplayConfig": "asyncrl.replay.sequences",
    "Source": "asyncrl.learner.source",
    "StopsRising": "asyncrl.learner.stop_conditions",
    "SyncModel": "asyncrl.core.agent",
    "TorchAgent": "asyncrl.agents.parts.torch_agent",
    "TorchPolicy": "asyncrl.agents.parts.torch_agent",
    "TrainResult": "asyncrl.learner.train_result",
    "TrainedPolicy": "asyncrl.learner.train_result",
    "Trainer": "asyncrl.learner.trainer",
    "Training": "asyncrl.core.callback",
    "TrajectoryQueueConfig": "asyncrl.replay.trajectories",
    "UniformReplayConfig": "asyncrl.replay.uniform",
    "build_replay_trainer": "asyncrl.extensions.order.replaying",
    "build_trainer": "asyncrl.run.train",
    "connect": "asyncrl.extensions.connect.connect",
    "join_run": "asyncrl.run.join",
    "load_policy": "asyncrl.run.saved_model",
    "make_batch": "asyncrl.envs.gym",
    "on_ray": "asyncrl.extensions.ray.hosts",
    "preset": "asyncrl.run.presets",
    "record_order": "asyncrl.extensions.order.recording",
    "replay_run": "asyncrl.extensions.order.replaying",
    "several_learners": "asyncrl.extensions.ranks.share",
    "train": "asyncrl.run.train",
    "train_async": "asyncrl.run.train",
    "train_from_data": "asyncrl.run.train",
    "train_sync": "asyncrl.run.train",
}
"""Public name -> the module in which it lives."""

__all__ = sorted(_HOMES)  # noqa: PLE0605  # names of the dictionary


def __getattr__(name: str) -> object:
    """Load the home of a public name and keep the name here (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'asyncrl' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the names that are loaded and those that are not yet."""
    return sorted({*globals(), *_HOMES})
