"""The arguments of a run other than settings: objects of the user, and directories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike

from asyncrl.actor.process import MakeEvaluator
from asyncrl.actor.step_processor import StepProcessor
from asyncrl.checkpoint.resume import Resume
from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import MakeBatchEnv
from asyncrl.core.interrupter import Interrupter
from asyncrl.learner.async_trainer import Strategy
from asyncrl.learner.stop_conditions import StopCondition, StopFunction
from asyncrl.learner.trainer import CommonParts
from asyncrl.supervision.host_launcher import HostsConfig
from asyncrl.supervision.ray import RayConfig
from asyncrl.training.launchers import RunLauncher

Elsewhere = HostsConfig | RayConfig
"""Settings of what starts actors on other machines."""


class OfflineParts(CommonParts, total=False):
    """The optional arguments of all ways to train."""

    stop: StopCondition | StopFunction | None
    checkpoint_dir: str | PathLike[str] | None
    resume: Resume
    interrupter: Interrupter | None
    make_evaluator: MakeEvaluator | None


class SyncParts(OfflineParts, total=False):
    """The optional arguments of ways that step environments."""

    make_eval_env: MakeBatchEnv | None
    make_processor: Callable[[], StepProcessor] | None


class AsyncParts(SyncParts, total=False):
    """The optional arguments of ways that have actors."""

    actor_agents: Sequence[AgentConfig] | None
    strategy: Strategy | None
    launcher: RunLauncher | Elsewhere | None
    record_order: str | PathLike[str] | None
    join_key: str | PathLike[str] | None
