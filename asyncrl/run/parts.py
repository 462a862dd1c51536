"""What a run is given beside its settings: objects of the user, and directories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Protocol

from asyncrl.actor.step_processor import StepProcessor
from asyncrl.checkpoint.resume import Resume, open_checkpoints
from asyncrl.core.agent import Agent, AgentConfig
from asyncrl.core.env import BatchEnv, EnvSpec, MakeBatchEnv, make_batch_env
from asyncrl.core.evaluator import MakeEvaluator
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.ranks import refuse_several
from asyncrl.core.torch_threads import are_adaptive
from asyncrl.fleet.config import HostsConfig
from asyncrl.learner.evaluation import EvaluationSite
from asyncrl.learner.stop_conditions import StopCondition, StopFunction
from asyncrl.learner.trainer import CommonParts, Strategy, TrainerParts
from asyncrl.run.evaluators import EvaluateApart, custom_evaluator
from asyncrl.run.run_config import RunConfig
from asyncrl.run.trained_policy import PolicyOf

if TYPE_CHECKING:
    from asyncrl.core.host_link import StartedHosts
    from asyncrl.learner.observer import MakeObserver
    from asyncrl.run.launchers import RunLauncher  # actors
    from asyncrl.run.share import Share  # which needs these


StartHosts = Callable[[RunConfig], "StartedHosts"]
"""Takes places for the hosts of a run on other machines."""


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

    launcher: RunLauncher | HostsConfig | None
    """`HostsConfig(...)`: hosts that join run the actors, in place of the config's `launcher`. One
    from `start_launcher` is closed with the run. None: as the config says."""

    start_hosts: StartHosts | None
    """`on_ray`: Ray starts hosts that run the actors, with the config's `ray`, in place of its
    `launcher`."""

    observers: Sequence[MakeObserver] | None
    """What makes those who watch the experience on its way, such as `record_order(path)`."""

    learners: Learners | None
    """`several_learners`: this process is one of those that torchrun has started."""

    join_key: str | PathLike[str] | None
    """File for the key that hosts join with."""

    video_dir: str | PathLike[str] | None
    """Directory of films of the environment that the config names. None makes no films."""


def placed(config: RunConfig, parts: Parts) -> RunConfig:
    """Return the config of a call, whose parts may say where actors run."""
    if parts.get("start_hosts"):
        config = replace(config, launcher="ray")
    if isinstance(hosts := parts.get("launcher"), HostsConfig):
        config = replace(config, launcher="hosts", hosts=hosts)
    return config


@contextmanager
def in_one_process(what: str, config: RunConfig, parts: Parts) -> Iterator[TrainerParts]:
    """Open the checkpoints of a run without actors; close and unlock all if it cannot be built.

    Refuses to be one of several learners, in the name of `what`.
    """
    refuse_several(what)
    checkpointer, checkpoint = open_checkpoints(
        parts.get("checkpoint_dir"),
        keep=config.save.keep,
        resume=parts.get("resume", False),
        config=parts.get("run_config"),
    )
    with ExitStack() as undo:
        if checkpointer:
            undo.callback(checkpointer.unlock)
        closing = undo.enter_context(ExitStack())
        yield {"checkpointer": checkpointer, "checkpoint": checkpoint, "closing": closing}
        undo.pop_all()


def open_env(make_env: MakeBatchEnv, closing: ExitStack) -> BatchEnv:
    """Build the environments of a run in this process, for `closing` to close."""
    env = make_batch_env(make_env)
    closing.callback(env.close)
    return env


def of_trainer(
    config: RunConfig,
    parts: Parts,
    learner: Agent,
    spec: EnvSpec,
    opened: TrainerParts,
    *,
    evaluation: EvaluationSite | None,
    make_eval_env: MakeBatchEnv | None,
) -> TrainerParts:
    """Return what a run gives its trainer, with what it has opened.

    Without `make_eval_env` nothing can be evaluated otherwise than the run does.
    """
    agent, apart = config.agent, None
    if make_eval_env and not custom_evaluator(parts.get("make_evaluator")):  # which takes nothing
        apart = EvaluateApart(agent, make_eval_env, config.evaluate)
    return {
        **opened,
        "evaluation": evaluation,
        "recorder": parts.get("recorder"),
        "callbacks": parts.get("callbacks", ()),
        "run_config": parts.get("run_config"),
        "interrupter": parts.get("interrupter"),
        "strategy": parts.get("strategy"),
        "stop": parts.get("stop"),
        "services": config,
        "make_policy": PolicyOf(agent, spec),
        "evaluate_apart": apart,
        "adaptive_threads": are_adaptive(agent, learner),
    }
