"""What a run is given beside its settings: objects of the user, and directories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypedDict, TypeVar

from asyncrl.actor.step_processor import StepProcessor
from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.checkpoint.resume import Resume, open_checkpoints
from asyncrl.core.agent import Agent, AgentConfig
from asyncrl.core.callback import Callback
from asyncrl.core.env import BatchEnv, EnvSpec, MakeBatchEnv, make_batch_env
from asyncrl.core.errors import ConfigError
from asyncrl.core.evaluator import MakeEvaluator
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.ranks import refuse_several
from asyncrl.core.recorder import Recorder
from asyncrl.core.settings import did_you_mean, has_methods
from asyncrl.core.torch_threads import are_adaptive
from asyncrl.fleet.config import HostsConfig
from asyncrl.learner.evaluation import EvaluationSite
from asyncrl.learner.source import Source
from asyncrl.learner.stop_conditions import StopCondition, StopFunction
from asyncrl.learner.trainer import Strategy, Trainer
from asyncrl.run.evaluators import EvaluateApart, custom_evaluator
from asyncrl.run.run_config import RunConfig
from asyncrl.run.trained_policy import PolicyOf

if TYPE_CHECKING:
    from asyncrl.core.host_link import StartedHosts
    from asyncrl.learner.observer import MakeObserver
    from asyncrl.run.launchers import RunLauncher  # actors
    from asyncrl.run.share import Share  # which needs these

AnyTrainer = TypeVar("AnyTrainer", bound=Trainer)

StartHosts = Callable[[RunConfig], "StartedHosts"]
"""Takes places for the hosts of a run on other machines."""


class Learners(Protocol):
    """Joins the learners of a run."""

    def __call__(
        self, config: RunConfig, actor_agents: Sequence[AgentConfig] | None, parts: Parts, /
    ) -> AbstractContextManager[Share]:
        """Yield the share of this learner."""
        ...


class Parts(TypedDict, total=False):
    """The arguments of all ways to train, each optional; `NEEDS` says which mode uses which.

    An argument replaces what the settings name. Callbacks are called after those. They are keys of
    a dictionary, so that calls are checked by their names, `**parts: Unpack[Parts]`, and what is
    left out differs from None.
    """

    recorder: Recorder | None
    """Where metrics are written. Left out, the terminal shows the progress; None shows nothing."""

    callbacks: Sequence[Callback]
    """Custom code that runs during training; see `core/callback.py`."""

    run_config: Mapping[str, object] | None
    """Plain values for the recorder and for checkpoints."""

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
    """Return the config of a call, whose parts may say where actors run, if there are any."""
    if config.mode != "async":
        return config
    if parts.get("start_hosts"):
        config = replace(config, launcher="ray")
    if isinstance(hosts := parts.get("launcher"), HostsConfig):
        config = replace(config, launcher="hosts", hosts=hosts)
    return config


class Opened(NamedTuple):
    """What a run has opened, for its trainer."""

    checkpointer: Checkpointer | None
    checkpoint: Checkpoint | None
    closing: ExitStack
    """What the trainer closes when the run is over."""


def open_run(
    config: RunConfig,
    parts: Parts,
    undo: ExitStack,
    closing: ExitStack,
    *,
    rank: int = 0,
    world: int = 1,
) -> Opened:
    """Open checkpoints as `open_checkpoints` does; `undo` unlocks them."""
    checkpointer, checkpoint = open_checkpoints(
        parts.get("checkpoint_dir"),
        keep=config.save.keep,
        resume=parts.get("resume", False),
        config=parts.get("run_config"),
        rank=rank,
        world=world,
    )
    if checkpointer:
        undo.callback(checkpointer.unlock)
    return Opened(checkpointer, checkpoint, closing)


@contextmanager
def in_one_process(what: str, config: RunConfig, parts: Parts) -> Iterator[Opened]:
    """Open the checkpoints of a run without actors; close and unlock all if it cannot be built.

    Refuses to be one of several learners, in the name of `what`.
    """
    refuse_several(what)
    with ExitStack() as undo:
        yield open_run(config, parts, undo, undo.enter_context(ExitStack()))
        undo.pop_all()


def open_env(make_env: MakeBatchEnv, closing: ExitStack) -> BatchEnv:
    """Build the environments of a run in this process, for `closing` to close."""
    env = make_batch_env(make_env)
    closing.callback(env.close)
    return env


def trainer_of(
    kind: type[AnyTrainer],
    config: RunConfig,
    parts: Parts,
    opened: Opened,
    learner: Agent,
    source: Source,
    *,
    spec: EnvSpec,
    evaluation: EvaluationSite | None,
) -> AnyTrainer:
    """Return the trainer of a run, with what the run has opened."""
    agent, apart, setup = config.agent, None, source.setup
    make_eval_env = parts.get("make_eval_env")
    if make_eval_env and not custom_evaluator(parts.get("make_evaluator")):  # which takes nothing
        apart = EvaluateApart(agent, make_eval_env, config.evaluate)
    # With several learners, another number of threads may change the last bit of a sum.
    is_alone = setup is None or setup.learners == 1
    return kind(
        learner,
        source,
        services=config,
        stop=parts.get("stop"),
        interrupter=parts.get("interrupter"),
        recorder=parts.get("recorder"),
        callbacks=parts.get("callbacks", ()),
        strategy=parts.get("strategy"),
        evaluation=evaluation,
        evaluate_apart=apart,
        checkpointer=opened.checkpointer,
        checkpoint=opened.checkpoint,
        run_config=parts.get("run_config"),
        make_policy=PolicyOf(agent, spec),
        adaptive_threads=is_alone and are_adaptive(agent, learner),
        closing=opened.closing,
    )


def check_parts(parts: Parts) -> None:
    """Refuse unknown arguments, which Python accepts in `**parts`, and those of a wrong type.

    Here for all modes, before anything starts. `check_mode` refuses those without effect.
    """
    known = sorted(Parts.__optional_keys__)
    for name in parts:
        if name not in known:
            raise ConfigError(f"there is no argument {name}{did_you_mean(name, known)}")
    for name in ("strategy", "make_evaluator", "make_processor"):
        part = parts.get(name)
        is_loop = name == "strategy"
        if part is not None and not (has_methods(part, "run") if is_loop else callable(part)):
            what = "an object with a method run" if is_loop else "a function or a class"
            raise ConfigError(f"{name} must be {what}, got {part!r:.80}")
    recorder, callbacks = parts.get("recorder"), parts.get("callbacks", ())
    if recorder is not None and not has_methods(recorder, "start", "write", "close"):
        raise ConfigError(
            f"recorder must be a Recorder, got {recorder!r:.80}; pass for instance "
            'recorder=JsonlRecorder(Path("metrics.jsonl")) from asyncrl.recorders.jsonl'
        )
    if not isinstance(callbacks, Sequence):
        kind = callbacks if isinstance(callbacks, type) else type(callbacks)
        name = kind.__name__ if issubclass(kind, Callback) else "MyCallback"
        raise ConfigError(
            f"callbacks must be a list, got {callbacks!r:.80}; pass a list: callbacks=[{name}()]"
        )
    for callback in callbacks:
        _check_callback(callback)


def _check_callback(callback: Callback) -> None:
    if not isinstance(callback, Callback):
        raise ConfigError(
            "callbacks must be instances of classes derived from asyncrl.Callback, got "
            f"{callback!r:.80}"
        )
    for name in (name for name in vars(Callback) if not name.startswith("_")):
        if not callable(value := getattr(callback, name)):
            raise ConfigError(
                f"the attribute `{name}` = {value!r:.80} of callback {type(callback).__name__} "
                f"hides the method `{name}` that a run calls; give it another name"
            )
