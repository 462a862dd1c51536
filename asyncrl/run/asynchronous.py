"""Wires the learner's side of an asynchronous run: transport, replay, trainer, actor processes.

`plan.py` has checked that the parts fit together; `actor/process.py` wires an actor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from asyncrl.checkpoint.resume import first_incarnation
from asyncrl.core.env import EnvDescription, MakeBatchEnv, source_of
from asyncrl.core.errors import ActorFailed, ConfigError
from asyncrl.core.goals import ComputesRewards, RelabelsGoals
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.launcher import ActorExit, Launcher
from asyncrl.core.replay_buffer import ReplayBuffer
from asyncrl.core.transport import LearnerLink
from asyncrl.core.types import ActorId
from asyncrl.fleet.actor_manager import ActorManager, MakeSpec
from asyncrl.fleet.config import HostsConfig
from asyncrl.fleet.host_launcher import HostLauncher
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.evaluation import BackgroundEvaluation
from asyncrl.learner.observer import Observed, Observer
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.learner.staleness import Lag
from asyncrl.run.describe_env import describe_in_child, plain_spec
from asyncrl.run.evaluators import episode_evaluator_maker, evaluation_here
from asyncrl.run.hosted import (
    admission,
    admit_hosts,
    checked_key_file,
    facts_of,
    places_for,
    publish,
)
from asyncrl.run.launchers import HELPERS, RunLauncher, launcher_of
from asyncrl.run.parts import Parts, of_trainer
from asyncrl.run.plan import RunPlan, check_run
from asyncrl.run.run_config import RunConfig
from asyncrl.run.share import whole
from asyncrl.transport.zeromq import ZmqTransport

if TYPE_CHECKING:
    from asyncrl.run.inference import ServedInference
    from asyncrl.transport.zeromq_hosts import ZmqHostsLink


def build_async_trainer(config: RunConfig, make_env: MakeBatchEnv, parts: Parts) -> AsyncTrainer:
    """Build an asynchronous run, for `build_trainer`."""
    agent, config = config.agent, config.with_usual_ratio()
    actor_agents, make_processor = parts.get("actor_agents"), parts.get("make_processor")
    make_evaluator, make_eval_env = parts.get("make_evaluator"), parts.get("make_eval_env")
    make_eval_env, launcher = make_eval_env or make_env, _local(parts)
    check_run(
        agent, make_env, make_processor, config, actor_agents, make_evaluator or make_eval_env
    )
    shared = parts.get("learners") or whole
    with shared(config, actor_agents, parts) as share, ExitStack() as undo:
        evaluate = make_evaluator or episode_evaluator_maker(make_eval_env, config.evaluate)
        key_file = checked_key_file(config, parts.get("join_key"))
        closing = undo.enter_context(ExitStack())  # the trainer closes it, once there is one
        places, config = places_for(share.config, parts.get("start_hosts"), closing)
        # Started first: it loads modules for the actors while the learner's side is built.
        starts = launcher_of(config, launcher)
        undo.callback(starts.close)
        seen = _describe(make_env, config, starts if isinstance(starts, RunLauncher) else None)
        plan = RunPlan(
            agent,
            make_env,
            make_processor,
            config,
            share.actor_agents,
            seen=seen,
            rank=share.rank,
            world=share.world,
        )
        served = _served(plan)
        buffer = plan.build_buffer()  # raises if memory cannot hold it
        checkpointer, checkpoint = share.open_checkpoints(
            parts.get("checkpoint_dir"),
            parts.get("resume", False),
            parts.get("run_config"),
            buffer=buffer,
            plan=plan,
            undo=undo,
        )
        learner = plan.build_learner()
        transport = ZmqTransport.of(starts.directory, schema=plan.schema, config=config.transport)
        link = transport.listen_to_hosts() if config.elsewhere else transport.listen()
        undo.callback(link.close)
        parts["interrupter"] = interrupter = parts.get("interrupter") or Interrupter()
        address = (
            served.listen_at(transport.inference(starts.directory), link.admit) if served else None
        )
        fleet: Launcher = starts
        facts = facts_of(agent, actor_agents, config, plan.schema.hash())
        if config.elsewhere:
            fleet, key = admit_hosts(
                starts,
                cast("ZmqHostsLink", link),
                config,
                facts,
                plain_spec(seen.spec),
                parts.get("run_config"),
            )
        observed = Observed(
            seed=plan.seed,
            schema=plan.schema,
            env=seen,
            settings=parts.get("run_config") or {},
            checkpoint=checkpoint,
            interrupter=interrupter,
            learners=share.world,
        )
        observers = [make(observed) for make in parts.get("observers") or ()]
        proxy = _proxy(link, buffer, plan, interrupter, observers, fleet)
        first = first_incarnation(checkpoint)
        specs = plan.specs(admission(link, config), evaluate, address, lambda: link.newest_change)
        manager = _manager(
            fleet,
            specs | (served.specs() if served else {}),
            config,
            interrupter,
            proxy=proxy,
            link=link,
            most_actors=plan.setup.most_actors,
            first_incarnation=first,
        )
        source = share.source(
            link,
            proxy,
            learner,
            interrupter,
            checkpointer,
            manager=manager,
            inference=served.thread(first, interrupter) if served else None,
            setup=plan.setup,
            publishes=parts.get("strategy") is None,
            hosts=fleet.hosts if isinstance(fleet, HostLauncher) else dict,
        )
        given = of_trainer(
            config,
            parts,
            learner,
            seen.spec,
            {
                "checkpointer": checkpointer,
                "checkpoint": checkpoint,
                "closing": closing,
                "setup": plan.setup,
                "before_env_change": partial(_follow_goals, proxy, make_env, config, interrupter),
            },
            evaluation=share.evaluation
            or (
                BackgroundEvaluation(link, proxy)
                if config.evaluate.where == "background"
                else evaluation_here(config.evaluate, evaluate, learner, closing)
            ),
            make_eval_env=make_eval_env,
        )
        if share.world > 1:  # another number of threads may change the last bit of a sum
            given["adaptive_threads"] = False
        trainer = AsyncTrainer(learner, source, **given)
        if isinstance(fleet, HostLauncher):
            # Last: hosts wait a minute for answers, and a checkpoint may take longer to load.
            from asyncrl.run.actor_plan import plan_actor  # noqa: PLC0415  # few runs have hosts
            from asyncrl.run.join import serve_run  # noqa: PLC0415

            usual = not (actor_agents or make_processor)
            planned = partial(plan_actor, agent, config, seen.spec, facts, usual=usual)
            publish(key, key_file, closing, planned)
            if places:
                serve = partial(serve_run, key, agent, make_env, config, actor_agents)
                places.start(partial(serve, make_processor=make_processor), interrupter.fail)
        undo.pop_all()
    return trainer


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


def _served(plan: RunPlan) -> ServedInference | None:
    """Return what computes the networks of actors, if they do not themselves."""
    if plan.config.inference == "actor":
        return None
    from asyncrl.run.inference import ServedInference  # noqa: PLC0415  # few runs

    return ServedInference(plan)


def _proxy(
    link: LearnerLink,
    buffer: ReplayBuffer,
    plan: RunPlan,
    interrupter: Interrupter,
    observers: Sequence[Observer],
    fleet: Launcher,
) -> ReplayBufferProxy:
    config = plan.config
    limits = config.trainer
    return ReplayBufferProxy(
        link,
        buffer,
        plan.limiter,
        interrupter,
        config.proxy,
        window=config.transport.window,
        lag=Lag(limits.max_lag_s, limits.max_lag_opt_steps),
        observers=observers,
        network_s=fleet.network_s if isinstance(fleet, HostLauncher) else lambda _: 0.0,
    )


def _describe(
    make_env: MakeBatchEnv,
    config: RunConfig,
    launcher: RunLauncher | None = None,
    interrupter: Interrupter | None = None,
) -> EnvDescription:
    """Inspect the environments: in a child process, or here if actors are threads."""
    goals = isinstance(config.replay, RelabelsGoals)
    if config.launcher == "thread":
        return source_of(make_env).describe(goals=goals)
    timeout_s = config.supervision.start_timeout_s
    return describe_in_child(
        make_env, timeout_s=timeout_s, launcher=launcher, goals=goals, interrupter=interrupter
    )


def _follow_goals(
    proxy: ReplayBufferProxy,
    make_env: MakeBatchEnv,
    config: RunConfig,
    interrupter: Interrupter,
    kwargs: Mapping[str, Any],
) -> None:
    """Let a replay compute rewards as environments with other keyword arguments do."""
    if not isinstance(proxy.buffer, ComputesRewards):
        return
    changed = source_of(make_env).with_kwargs(kwargs)
    try:  # by another launcher: that of the actors serves the manager's thread only
        seen = _describe(changed, config, interrupter=interrupter)
    except ActorFailed:
        if interrupter.is_set:  # it samples no more; a resumed run inspects them again
            return
        raise
    proxy.buffer.compute_as(seen.goal_reward)
    for one in proxy.observers:
        one.rewards(seen.goal_reward)


def _manager(
    launcher: Launcher,
    specs: Mapping[ActorId, MakeSpec],
    config: RunConfig,
    interrupter: Interrupter,
    *,
    proxy: ReplayBufferProxy,
    link: LearnerLink,
    most_actors: int,
    first_incarnation: int,
) -> ActorManager:
    def on_exit(ended: ActorExit) -> None:
        link.revoke(ended.peer, fence=bool(ended.gone))
        if ended.peer.actor_id not in HELPERS:
            proxy.ledger.on_ended(ended.peer, produced=ended.last.produced)
        proxy.ended.append(ended.peer)  # last: its grants are not opened again from here on

    def on_restart(actor_id: ActorId, at_memory_limit: bool) -> None:
        if actor_id not in HELPERS:
            proxy.actors.on_restart(actor_id, at_memory_limit=at_memory_limit)

    return ActorManager(
        launcher,
        specs,
        config.supervision,
        interrupter,
        names={slot: f"the {name}" for slot, name in HELPERS.items()},
        most_actors=most_actors,
        first_incarnation=first_incarnation,
        on_exit=on_exit,
        on_restart=on_restart,
        on_drop=proxy.actors.on_drop,
    )
