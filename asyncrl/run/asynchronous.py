"""Wires the learner's side of an asynchronous run: transport, replay, trainer, actor processes.

`plan.py` has checked that the parts fit together; `actor/process.py` wires an actor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.actor.step_processor import StepProcessor
from asyncrl.checkpoint.checkpoint import Checkpoint
from asyncrl.checkpoint.resume import first_incarnation
from asyncrl.core.agent import Agent
from asyncrl.core.callback import Callback
from asyncrl.core.env import MakeBatchEnv, source_of
from asyncrl.core.errors import ActorFailed, ConfigError
from asyncrl.core.evaluator import MakeEvaluator
from asyncrl.core.goals import ComputesRewards
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.launcher import ActorExit, Launcher
from asyncrl.core.replay_buffer import ReplayBuffer
from asyncrl.core.types import ActorId
from asyncrl.fleet.actor_manager import ActorManager, MakeSpec
from asyncrl.fleet.config import HostsConfig
from asyncrl.learner.actor_source import Actors
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.evaluation import BackgroundEvaluation, EvaluationSite
from asyncrl.learner.observer import Observed, Observer
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.learner.staleness import Lag
from asyncrl.run.describe_env import describe_for
from asyncrl.run.evaluators import evaluation_here, evaluator_maker
from asyncrl.run.launchers import HELPERS, RunLauncher, launcher_of
from asyncrl.run.parts import Parts, trainer_of
from asyncrl.run.plan import Admit, Fleet, RunPlan, check_run
from asyncrl.run.run_config import RunConfig
from asyncrl.run.share import Share, whole
from asyncrl.transport.zeromq import ZmqTransport

if TYPE_CHECKING:
    from asyncrl.run.hosted import HostsElsewhere
    from asyncrl.run.inference import ServedInference


def build_async_trainer(config: RunConfig, make_env: MakeBatchEnv, parts: Parts) -> AsyncTrainer:
    """Build an asynchronous run, for `build_trainer`."""
    config, local = config.with_usual_ratio(), _local(parts)
    agents, make_processor = parts.get("actor_agents"), parts.get("make_processor")
    make_eval_env = parts.get("make_eval_env") or make_env
    evaluate = evaluator_maker(parts.get("make_evaluator"), make_eval_env, config.evaluate)
    check_run(config, make_env, make_processor, agents, evaluate)
    parts["interrupter"] = interrupter = parts.get("interrupter") or Interrupter()
    learners = parts.get("learners") or whole
    with learners(config, agents, parts) as share, ExitStack() as undo:
        closing = undo.enter_context(ExitStack())  # the trainer closes it, once there is one
        hosts = _hosts(share.config, parts, closing)
        config = hosts.config
        # Started first: it loads modules for the actors while the learner's side is built.
        launcher = launcher_of(config, local)
        undo.callback(launcher.close)
        plan = _plan(share, config, make_env, make_processor, launcher)
        buffer = plan.build_buffer()  # raises if memory cannot hold it
        opened = share.open_run(parts, plan, buffer, undo, closing)
        learner = plan.build_learner()
        where = launcher.directory
        transport = ZmqTransport.of(where, schema=plan.schema, config=config.transport)
        fleet = hosts.fleet(launcher, transport, plan, undo)
        observers = _observers(plan, parts, opened.checkpoint, interrupter)
        proxy = _proxy(plan, fleet, buffer, observers, interrupter)
        served = _served(plan, transport, where, fleet.link.admit)
        first = first_incarnation(opened.checkpoint)
        specs = plan.specs(fleet.admit, evaluate, served, lambda: fleet.link.newest_change)
        actors = Actors(
            link=fleet.link,
            proxy=proxy,
            manager=_manager(plan, fleet, specs, proxy, first),
            inference=served.thread(first, interrupter) if served else None,
            setup=plan.setup,
            publishes=parts.get("strategy") is None,
            hosts=fleet.hosts,
            before_change=partial(_follow_goals, plan, proxy),
        )
        source = share.source(actors, learner, opened.checkpointer)
        site = share.evaluation or _evaluation(config, actors, evaluate, learner, closing)
        parts["callbacks"] = [*parts.get("callbacks", ()), *_compiling(plan, learner, parts)]
        trainer = trainer_of(
            AsyncTrainer, config, parts, opened, learner, source, spec=plan.spec, evaluation=site
        )
        # Last: hosts wait a minute for answers, and a checkpoint may take longer to load.
        fleet.invite(interrupter)
        undo.pop_all()
    return trainer


class _NoHosts:
    """All processes of the run are started on this machine; the counterpart of `HostsElsewhere`."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def fleet(self, local: Launcher, transport: ZmqTransport, _: RunPlan, undo: ExitStack) -> Fleet:
        link = transport.listen()
        undo.callback(link.close)
        return Fleet(launcher=local, link=link, admit=link.admit)


def _hosts(config: RunConfig, parts: Parts, closing: ExitStack) -> _NoHosts | HostsElsewhere:
    """Return where the actors run."""
    if not config.elsewhere:
        return _NoHosts(config)
    from asyncrl.run.hosted import HostsElsewhere  # noqa: PLC0415  # few runs

    return HostsElsewhere(config, parts, closing)


def _local(parts: Parts) -> RunLauncher | None:
    """Return the launcher that was given; `train.py` has seen to settings in its place."""
    match parts.get("launcher"):
        case RunLauncher() as launcher:
            return launcher
        case HostsConfig() | None:
            return None
        case other:
            raise ConfigError(
                f"launcher must be HostsConfig(...), got {other!r:.80}; the config's own "
                "`launcher` takes names, and for Ray there is start_hosts=on_ray"
            )


def _plan(
    share: Share,
    config: RunConfig,
    make_env: MakeBatchEnv,
    make_processor: Callable[[], StepProcessor] | None,
    launcher: Launcher,
) -> RunPlan:
    local = launcher if isinstance(launcher, RunLauncher) else None
    return RunPlan(
        config,
        make_env,
        make_processor,
        share.actor_agents,
        seen=describe_for(config, make_env, local),
        rank=share.rank,
        world=share.world,
    )


def _observers(
    plan: RunPlan, parts: Parts, checkpoint: Checkpoint | None, interrupter: Interrupter
) -> list[Observer]:
    observed = Observed(
        seed=plan.seed,
        schema=plan.schema,
        env=plan.seen,
        settings=parts.get("run_config") or {},
        checkpoint=checkpoint,
        interrupter=interrupter,
        learners=plan.setup.learners,
    )
    return [make(observed) for make in parts.get("observers") or ()]


def _proxy(
    plan: RunPlan,
    fleet: Fleet,
    buffer: ReplayBuffer,
    observers: Sequence[Observer],
    interrupter: Interrupter,
) -> ReplayBufferProxy:
    config = plan.config
    return ReplayBufferProxy(
        fleet.link,
        buffer,
        plan.limiter,
        interrupter,
        config.proxy,
        window=config.transport.window,
        lag=Lag(config.trainer.max_lag_s, config.trainer.max_lag_opt_steps),
        observers=observers,
        network_s=fleet.network_s,
    )


def _served(
    plan: RunPlan, transport: ZmqTransport, directory: Path, admit: Admit
) -> ServedInference | None:
    """Return what computes the networks of actors, if they do not themselves."""
    if plan.config.inference == "actor":
        return None
    from asyncrl.run.inference import ServedInference  # noqa: PLC0415  # few runs

    return ServedInference(plan, transport.inference(directory), admit)


def _compiling(plan: RunPlan, learner: Agent, parts: Parts) -> list[Callback]:
    """Return what compiles optimisation steps in the course of the run, if that is asked for."""
    if getattr(plan.agent, "accelerate", "off") != "auto":
        return []
    from asyncrl.run.compiling import compiled_in_mid_run  # noqa: PLC0415  # many runs are short

    return compiled_in_mid_run(plan, learner, parts)


def _follow_goals(plan: RunPlan, proxy: ReplayBufferProxy, kwargs: Mapping[str, Any]) -> None:
    """Let a replay compute rewards as environments with other keyword arguments do."""
    if not isinstance(proxy.buffer, ComputesRewards):
        return
    changed, interrupter = source_of(plan.make_env).with_kwargs(kwargs), proxy.interrupter
    try:  # by another launcher: that of the actors serves the manager's thread only
        seen = describe_for(plan.config, changed, interrupter=interrupter)
    except ActorFailed:
        if interrupter.is_set:  # it samples no more; a resumed run inspects them again
            return
        raise
    proxy.buffer.compute_as(seen.goal_reward)
    for one in proxy.observers:
        one.rewards(seen.goal_reward)


def _manager(
    plan: RunPlan,
    fleet: Fleet,
    specs: Mapping[ActorId, MakeSpec],
    proxy: ReplayBufferProxy,
    first_incarnation: int,
) -> ActorManager:
    def on_exit(ended: ActorExit) -> None:
        fleet.link.revoke(ended.peer, fence=bool(ended.gone))
        if ended.peer.actor_id not in HELPERS:
            proxy.ledger.on_ended(ended.peer, produced=ended.last.produced)
        proxy.ended.append(ended.peer)  # last: its grants are not opened again from here on

    def on_restart(actor_id: ActorId, at_memory_limit: bool) -> None:
        if actor_id not in HELPERS:
            proxy.actors.on_restart(actor_id, at_memory_limit=at_memory_limit)

    return ActorManager(
        fleet.launcher,
        specs,
        plan.config.supervision,
        proxy.interrupter,
        names={slot: f"the {name}" for slot, name in HELPERS.items()},
        most_actors=plan.setup.most_actors,
        first_incarnation=first_incarnation,
        on_exit=on_exit,
        on_restart=on_restart,
        on_drop=proxy.actors.on_drop,
    )


def _evaluation(
    config: RunConfig, actors: Actors, evaluate: MakeEvaluator, learner: Agent, closing: ExitStack
) -> EvaluationSite | None:
    if config.evaluate.where == "background":
        return BackgroundEvaluation(actors.link, actors.proxy)
    return evaluation_here(config.evaluate, evaluate, learner, closing)
