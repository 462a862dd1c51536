"""What a run is given beside its settings: objects of the user, and directories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol

from asyncrl.actor.process import MakeEvaluator
from asyncrl.actor.step_processor import StepProcessor
from asyncrl.checkpoint.resume import Resume
from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import EnvSource, MakeBatchEnv
from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.recorder import Recorder
from asyncrl.core.settings import to_parameters
from asyncrl.fleet.host_launcher import HostsConfig
from asyncrl.fleet.ray import RayConfig
from asyncrl.learner.observer import MakeObserver
from asyncrl.learner.stop_conditions import StopCondition, StopFunction, as_condition
from asyncrl.learner.trainer import CommonParts, Strategy
from asyncrl.recorders.background import BackgroundRecorder
from asyncrl.run.launchers import RunLauncher
from asyncrl.run.run_config import RunConfig

if TYPE_CHECKING:
    from asyncrl.run.share import Share  # which needs these

Elsewhere = HostsConfig | RayConfig
"""Settings of what starts actors on other machines."""


class Learners(Protocol):
    """Joins the learners of a run."""

    def __call__(
        self, config: RunConfig, actor_agents: Sequence[AgentConfig] | None, parts: Parts, /
    ) -> AbstractContextManager[Share]:
        """Yield the share of this learner."""
        ...


class Parts(CommonParts, total=False):
    """The arguments of all ways to train, each optional; `NEEDS` says which mode uses which.

    An argument replaces what the settings name. Callbacks are called after those.
    """

    stop: StopCondition | StopFunction | None
    """When to stop, in place of all limits. None: only `interrupter` or an error ends the run."""

    actor_agents: Sequence[AgentConfig] | None
    """One config per actor, for instance to explore differently."""

    make_eval_env: MakeBatchEnv | None
    """Builds the environments for evaluation. None: those of training, and of single ones as many
    as there are episodes, at most 64."""

    make_evaluator: MakeEvaluator | None
    """Builds a custom evaluator in place of `EpisodeEvaluator`."""

    make_processor: Callable[[], StepProcessor] | None
    """Builds the object that turns steps into rows, in place of `OneStep`."""

    checkpoint_dir: str | PathLike[str] | None
    """Directory of checkpoints. None saves none."""

    resume: Resume
    """Resume from the newest valid checkpoint in that directory: bit by bit without actors, if it
    holds the replay. "without replay" does not load its replay: the warm-up fills a new one, which
    may differ in capacity, n-step or segment length. The path of a checkpoint, in another
    directory, branches off from it."""

    strategy: Strategy | None
    """A custom training loop."""

    interrupter: Interrupter | None
    """Stops the run from outside, with a reason."""

    launcher: RunLauncher | Elsewhere | None
    """`HostsConfig(...)` or `RayConfig(...)`: hosts that join, or that Ray starts, run the actors,
    in place of the config's `launcher`. One from `start_launcher` is closed with the run. None: as
    the config says."""

    observers: Sequence[MakeObserver] | None
    """What makes those who watch the experience on its way, such as `record_order(path)`."""

    learners: Learners | None
    """`several_learners`: this process is one of those that torchrun has started."""

    join_key: str | PathLike[str] | None
    """File for the key that hosts join with."""

    video_dir: str | PathLike[str] | None
    """Directory of films of the environment that the config names. None makes no films."""


def placed(
    config: RunConfig, launcher: RunLauncher | Elsewhere | None
) -> tuple[RunConfig, RunLauncher | None]:
    """Return the config and the launcher of a call, whose `launcher` may be settings instead."""
    match launcher:
        case HostsConfig():
            return replace(config, launcher="hosts", hosts=launcher), None
        case RayConfig():
            return replace(config, launcher="ray", ray=launcher), None
        case RunLauncher() | None:
            return config, launcher
    raise ConfigError(
        f"launcher must be HostsConfig(...) or RayConfig(...), got {launcher!r:.80}; the config's "
        "own `launcher` takes names"
    )


def local_launcher(parts: Parts) -> RunLauncher | None:
    """Return the launcher that was given, once `placed` has seen to settings in its place."""
    launcher = parts.get("launcher")
    return launcher if isinstance(launcher, RunLauncher) else None


def common_parts(parts: Parts) -> CommonParts:
    """Return the parts that go to any trainer as they are."""
    return {
        "recorder": parts.get("recorder"),
        "callbacks": parts.get("callbacks", ()),
        "run_config": parts.get("run_config"),
    }


def recorder_of(parts: Parts) -> Recorder | None:
    """Return a recorder that writes in a thread, so that one that is slow or fails harms nothing.

    Unless the caller does, choose one that shows the progress.
    """
    if "recorder" in parts:
        recorder = parts["recorder"]
    else:
        stop = parts.get("stop")
        limits = {} if stop is None else as_condition(stop).limits()
        # It loads rich.
        recorder = import_module("asyncrl.recorders.terminal").TerminalRecorder(limits=limits)
    if recorder is None or isinstance(recorder, BackgroundRecorder):
        return recorder
    return BackgroundRecorder([recorder])


_OF_NAMED_ENV = (
    *("env", "env_kwargs", "eval_env_kwargs", "env_info", "env_wrappers"),
    *("envs_per_actor", "vectorization"),
)
"""Settings of an environment that is given by name, not as an argument."""


def described(config: RunConfig, make_env: object) -> dict[str, Any]:
    """Return plain values that describe a run; with `make_env`, if that replaces what they name."""
    settings = {n: v for n, v in to_parameters(config).items() if n != "type"}
    if make_env is None:
        return settings
    env = make_env.of if isinstance(make_env, EnvSource) else make_env
    own = {n: v for n, v in settings.items() if n not in _OF_NAMED_ENV}
    return own | {"env": to_parameters(env)}
