"""What a run is given beside its settings: objects of the user, and directories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike

from asyncrl.actor.process import MakeEvaluator
from asyncrl.actor.step_processor import StepProcessor
from asyncrl.checkpoint.resume import Resume
from asyncrl.core.agent import AgentConfig
from asyncrl.core.env import MakeBatchEnv
from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.learner.async_trainer import Strategy
from asyncrl.learner.stop_conditions import StopCondition, StopFunction
from asyncrl.learner.trainer import CommonParts
from asyncrl.supervision.host_launcher import HostsConfig
from asyncrl.supervision.ray import RayConfig
from asyncrl.training.launchers import RunLauncher
from asyncrl.training.run_config import RunConfig

Elsewhere = HostsConfig | RayConfig
"""Settings of what starts actors on other machines."""


class Parts(CommonParts, total=False):
    """The arguments of all ways to train, each optional; `USED_BY` says which mode uses which.

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

    record_order: str | PathLike[str] | None
    """File in which the experience is kept and the order in which the learner used it, so that
    `replay_run` can compute the same parameters again. A resumed run writes another one beside it.
    None keeps nothing."""

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
