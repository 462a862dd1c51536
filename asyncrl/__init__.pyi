# What `from asyncrl import ...` gives, one name a line; `__init__.py` has the same names.

from asyncrl.actor.evaluator import EpisodeEvaluatorConfig as EpisodeEvaluatorConfig
from asyncrl.agents.parts.exploration import EpsilonLadder as EpsilonLadder
from asyncrl.agents.parts.schedules import Schedule as Schedule
from asyncrl.agents.parts.torch_agent import TorchAgent as TorchAgent
from asyncrl.agents.parts.torch_agent import TorchPolicy as TorchPolicy
from asyncrl.core.agent import Act as Act
from asyncrl.core.agent import Agent as Agent
from asyncrl.core.agent import Policy as Policy
from asyncrl.core.agent import PolicyContext as PolicyContext
from asyncrl.core.agent import SyncModel as SyncModel
from asyncrl.core.callback import Callback as Callback
from asyncrl.core.callback import Training as Training
from asyncrl.core.env import EnvSpec as EnvSpec
from asyncrl.core.errors import ActorFailed as ActorFailed
from asyncrl.core.errors import AsyncRLError as AsyncRLError
from asyncrl.core.errors import CheckpointError as CheckpointError
from asyncrl.core.errors import ConfigError as ConfigError
from asyncrl.core.errors import EnvironmentFault as EnvironmentFault
from asyncrl.core.evaluator import Evaluation as Evaluation
from asyncrl.core.evaluator import Evaluator as Evaluator
from asyncrl.core.messages import ModelInfo as ModelInfo
from asyncrl.core.recorder import Recorder as Recorder
from asyncrl.core.segment import ColumnSpec as ColumnSpec
from asyncrl.core.segment import SegmentConfig as SegmentConfig
from asyncrl.envs.gym import EnvConfig as EnvConfig
from asyncrl.envs.gym import make_batch as make_batch
from asyncrl.extensions.connect.connect import connect as connect
from asyncrl.extensions.order.recording import record_order as record_order
from asyncrl.extensions.order.replaying import ReplayedTrainer as ReplayedTrainer
from asyncrl.extensions.order.replaying import build_replay_trainer as build_replay_trainer
from asyncrl.extensions.order.replaying import replay_run as replay_run
from asyncrl.extensions.ranks.share import several_learners as several_learners
from asyncrl.fleet.actor_manager import ActorManager as ActorManager
from asyncrl.fleet.config import ActorManagerConfig as ActorManagerConfig
from asyncrl.fleet.config import HostsConfig as HostsConfig
from asyncrl.fleet.ray import RayConfig as RayConfig
from asyncrl.learner.actor_source import ActorSource as ActorSource
from asyncrl.learner.async_trainer import AsyncTrainer as AsyncTrainer
from asyncrl.learner.config import AsyncTrainerConfig as AsyncTrainerConfig
from asyncrl.learner.observer import Observer as Observer
from asyncrl.learner.rate_limiter import RateLimiterConfig as RateLimiterConfig
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy as ReplayBufferProxy
from asyncrl.learner.run_services import RecordConfig as RecordConfig
from asyncrl.learner.run_services import SaveConfig as SaveConfig
from asyncrl.learner.source import DataSource as DataSource
from asyncrl.learner.source import Source as Source
from asyncrl.learner.stop_conditions import MaxEnvSteps as MaxEnvSteps
from asyncrl.learner.stop_conditions import MaxOptSteps as MaxOptSteps
from asyncrl.learner.stop_conditions import MaxSeconds as MaxSeconds
from asyncrl.learner.stop_conditions import ReachesUpperBound as ReachesUpperBound
from asyncrl.learner.stop_conditions import StopsRising as StopsRising
from asyncrl.learner.train_result import TrainedPolicy as TrainedPolicy
from asyncrl.learner.train_result import TrainResult as TrainResult
from asyncrl.learner.trainer import Trainer as Trainer
from asyncrl.recorders.memory import MemoryRecorder as MemoryRecorder
from asyncrl.replay.hindsight import HindsightReplayConfig as HindsightReplayConfig
from asyncrl.replay.prioritized import PrioritizedReplayConfig as PrioritizedReplayConfig
from asyncrl.replay.sequences import (
    PrioritizedSequenceReplayConfig as PrioritizedSequenceReplayConfig,
)
from asyncrl.replay.sequences import SequenceReplayConfig as SequenceReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig as TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig as UniformReplayConfig
from asyncrl.run.join import join_run as join_run
from asyncrl.run.parts import Parts as Parts
from asyncrl.run.presets import preset as preset
from asyncrl.run.run_config import EvaluationConfig as EvaluationConfig
from asyncrl.run.run_config import RunConfig as RunConfig
from asyncrl.run.saved_model import load_policy as load_policy
from asyncrl.run.train import build_trainer as build_trainer
from asyncrl.run.train import train as train
from asyncrl.run.train import train_async as train_async
from asyncrl.run.train import train_from_data as train_from_data
from asyncrl.run.train import train_sync as train_sync

__version__: str
