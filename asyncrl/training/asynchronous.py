"""Wires the learner's side of an asynchronous run: transport, replay, trainer, actor processes.

`plan.py` has checked that the parts fit together; `actor/process.py` wires an actor.

`train_async` builds and trains in one call. `build_async_trainer` returns the trainer, so that the
caller can inspect or replace parts before calling `train`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from inspect import signature
from os import PathLike
from typing import Any, Unpack

from asyncrl.actor.process import MakeEvaluator
from asyncrl.actor.step_processor import StepProcessor
from asyncrl.checkpoint.resume import Resume, first_incarnation
from asyncrl.core.agent import Agent, AgentConfig
from asyncrl.core.env import EnvDescription, MakeBatchEnv
from asyncrl.core.errors import ActorFailed
from asyncrl.core.goals import ComputesRewards, RelabelsGoals
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.launcher import ActorExit, Launcher
from asyncrl.core.torch_threads import are_adaptive
from asyncrl.core.transport import LearnerLink
from asyncrl.core.types import ActorId
from asyncrl.learner.async_trainer import AsyncTrainer, Strategy
from asyncrl.learner.evaluation import BackgroundEvaluation, EvaluationSite, InlineEvaluation
from asyncrl.learner.order_log import Rewards
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.learner.stop_conditions import StopCondition, StopFunction, check_can_hold
from asyncrl.learner.trainer import CommonParts, check_parts
from asyncrl.supervision.actor_manager import ActorManager, MakeBody
from asyncrl.supervision.host_launcher import HostLauncher
from asyncrl.supervision.threads import ThreadLauncher
from asyncrl.training.actor_plan import plan_actor
from asyncrl.training.common_config import (
    EvaluationConfig,
    complete_parts,
    eval_env_maker,
    with_env_kwargs,
)
from asyncrl.training.describe_env import describe_here, describe_in_child, plain_spec
from asyncrl.training.evaluate_apart import apart_unless
from asyncrl.training.hosted import (
    admission,
    admit_hosts,
    checked_key_file,
    facts_of,
    places_on_ray,
    publish,
    start_on_ray,
)
from asyncrl.training.join import serve_run
from asyncrl.training.launchers import HELPERS, RunLauncher, launcher_of
from asyncrl.training.parts import Elsewhere, placed
from asyncrl.training.plan import RunPlan, check_run, evaluator_maker
from asyncrl.training.ranks import joined_share
from asyncrl.training.recorded import check_order_path, order_of
from asyncrl.training.run_config import RunConfig, config_or_default
from asyncrl.training.trained_policy import PolicyOf
from asyncrl.transport.zeromq import ZmqTransport


def build_async_trainer(
    agent: AgentConfig,
    make_env: MakeBatchEnv,
    config: RunConfig | None = None,
    *,
    stop: StopCondition | StopFunction | None = None,
    actor_agents: Sequence[AgentConfig] | None = None,
    make_eval_env: MakeBatchEnv | None = None,
    make_evaluator: MakeEvaluator | None = None,
    make_processor: Callable[[], StepProcessor] | None = None,
    checkpoint_dir: str | PathLike[str] | None = None,
    resume: Resume = False,
    strategy: Strategy | None = None,
    interrupter: Interrupter | None = None,
    launcher: RunLauncher | Elsewhere | None = None,
    record_order: str | PathLike[str] | None = None,
    join_key: str | PathLike[str] | None = None,
    **parts: Unpack[CommonParts],
) -> AsyncTrainer:
    """Build an asynchronous run. Everything that can be checked is checked before a process starts.

    Args:
        agent: The learner's agent, and every actor's unless `actor_agents` is given.
        make_env: Builds the environments of one actor, in its process; see `envs/`.
        config: All other settings; the defaults work.
        stop: When to stop. None: only `interrupter` or an error ends the run.
        actor_agents: One config per actor, for instance to explore differently.
        make_eval_env: Builds the environments for evaluation. None: those of `make_env`, and of
            single ones as many as there are episodes, at most 64.
        make_evaluator: Builds a custom evaluator in place of `EpisodeEvaluator`.
        make_processor: Builds the object that turns steps into rows, in place of `OneStep`.
        checkpoint_dir: Directory of checkpoints. None saves none.
        resume: Resume from the newest valid checkpoint in that directory. "without replay" does not
            load its replay: the warm-up fills a new one, which may differ in capacity, n-step or
            segment length. The path of a checkpoint, in another directory, branches off from it.
        strategy: A custom training loop.
        interrupter: Stops the run from outside, with a reason.
        launcher: `HostsConfig(...)` or `RayConfig(...)`: hosts that join, or that Ray starts, run
            the actors, in place of the config's `launcher`. One from `start_launcher` is closed
            with the run. None: as the config says.
        record_order: File in which the experience is kept and the order in which the learner used
            it, so that `replay_run` can compute the same parameters again. A resumed run writes
            another one beside it. None keeps nothing.
        join_key: File for the key that hosts join with.
        parts: `recorder`, which stores metrics, in a background thread, so it may be slow. Left
            out, standard output shows the progress; None shows nothing;
            `callbacks`, called during the run, see `core/callback.py`;
            `run_config`, plain values that the recorder stores beside its metrics.
    """
    check_parts(
        parts,
        signature(build_async_trainer).parameters,
        strategy=strategy,
        make_evaluator=make_evaluator,
        make_processor=make_processor,
    )
    config, launcher = placed(config_or_default(agent, config, "async").for_agent(agent), launcher)
    complete_parts(parts, agent, make_env, config, stop)
    check_can_hold(stop, config.evaluations_off)
    check_order_path(record_order)
    check_run(agent, make_env, make_processor, config, actor_agents)
    make_eval_env = eval_env_maker(make_eval_env, make_env, config)
    shared = joined_share(config, actor_agents, parts, strategy=strategy, record_order=record_order)
    with shared as share, ExitStack() as undo:
        evaluate = evaluator_maker(make_evaluator, make_eval_env, share.config)
        key_file = checked_key_file(config, join_key)
        places, config = places_on_ray(share.config, undo)
        # Started first: it loads modules for the actors while the learner's side is built.
        starts = launcher_of(config, launcher)
        undo.callback(starts.close)
        seen = _describe(make_env, config, starts)
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
        if config.inference != "actor":
            plan.check_inference()
        buffer = plan.build_buffer()  # raises if memory cannot hold it
        checkpointer, checkpoint = share.open_checkpoints(
            checkpoint_dir, resume, parts.get("run_config"), buffer=buffer, plan=plan, undo=undo
        )
        closing = undo.enter_context(ExitStack())  # the trainer closes it, once there is one
        learner = plan.build_learner()
        transport = ZmqTransport.of(starts.directory, schema=plan.schema, config=config.transport)
        link = transport.listen()
        undo.callback(link.close)
        interrupter = interrupter or Interrupter()
        window = config.transport.window
        proxy = ReplayBufferProxy(
            link, buffer, plan.limiter, interrupter, config.proxy, window=window
        )
        proxy.order = order_of(record_order, plan, parts.get("run_config"), checkpoint, interrupter)
        first = first_incarnation(checkpoint)
        address = None if config.inference == "actor" else transport.inference(starts.directory)
        fleet: Launcher = starts
        if config.elsewhere:
            facts = facts_of(agent, actor_agents, config, plan.schema.hash())
            fleet, key = admit_hosts(
                starts,
                link,
                config,
                facts,
                plain_spec(seen.spec),
                parts.get("run_config"),
                actors=lambda: trainer.actors,
            )
            proxy.actors.hosts, proxy.network_s = fleet.hosts, fleet.network_s
        bodies = plan.bodies(admission(link, config), evaluate, address)
        trainer = AsyncTrainer(
            learner,
            link,
            proxy,
            config.trainer,
            manager=_manager(
                fleet,
                bodies,
                config,
                interrupter,
                proxy=proxy,
                link=link,
                most_actors=plan.setup.most_actors,
                first_incarnation=first,
            ),
            interrupter=interrupter,
            inference=(
                plan.inference_thread(link.admit, address, first, interrupter)
                if address is not None and config.inference == "learner"
                else None
            ),
            evaluation=_evaluation_site(config.evaluate, evaluate, learner, link, proxy, closing),
            checkpointer=checkpointer,
            stop=stop,
            strategy=strategy,
            setup=plan.setup,
            services=config,
            checkpoint=checkpoint,
            make_policy=PolicyOf(agent, seen.spec),
            before_env_change=partial(_follow_goals, proxy, make_env, config, starts, interrupter),
            evaluate_apart=apart_unless(make_evaluator, agent, make_eval_env, config.evaluate),
            # The number of threads may change the last bit of a sum, which must be equal in all.
            adaptive_threads=share.world == 1 and are_adaptive(agent, learner),
            group=share.group,
            ranks=config.ranks,
            closing=closing,
            **parts,
        )
        plan.env_change = lambda: trainer.env_change
        if isinstance(fleet, HostLauncher):
            # Last: hosts wait a minute for answers, and a checkpoint may take longer to load.
            usual = not (actor_agents or make_processor)
            publish(
                key,
                key_file,
                closing,
                partial(plan_actor, agent, config, seen.spec, facts, usual=usual),
            )
            host = partial(
                serve_run, key, agent, make_env, config, actor_agents, make_processor=make_processor
            )
            start_on_ray(places, fleet, host, interrupter, closing)
        undo.pop_all()
    return trainer


def _describe(
    make_env: MakeBatchEnv,
    config: RunConfig,
    launcher: RunLauncher | ThreadLauncher | None,
    interrupter: Interrupter | None = None,
) -> EnvDescription:
    """Inspect the environments: in a child process, or here if actors are threads."""
    goals = isinstance(config.replay, RelabelsGoals)
    if isinstance(launcher, ThreadLauncher):
        return describe_here(make_env, goals=goals)
    timeout_s = config.supervision.start_timeout_s
    return describe_in_child(
        make_env, timeout_s=timeout_s, launcher=launcher, goals=goals, interrupter=interrupter
    )


def _follow_goals(
    proxy: ReplayBufferProxy,
    make_env: MakeBatchEnv,
    config: RunConfig,
    starts: RunLauncher | ThreadLauncher,
    interrupter: Interrupter,
    kwargs: Mapping[str, Any],
) -> None:
    """Let a replay compute rewards as environments with other keyword arguments do."""
    if not isinstance(proxy.buffer, ComputesRewards):
        return
    # A launcher of processes serves the manager's thread only.
    shared = starts if isinstance(starts, ThreadLauncher) else None
    try:
        seen = _describe(with_env_kwargs(make_env, kwargs), config, shared, interrupter)
    except ActorFailed:
        if interrupter.is_set:  # it samples no more; a resumed run inspects them again
            return
        raise
    proxy.buffer.compute_as(seen.goal_reward)
    proxy.order.changed(Rewards(seen.goal_reward))


def _evaluation_site(
    config: EvaluationConfig,
    evaluate: MakeEvaluator,
    learner: Agent,
    link: LearnerLink,
    proxy: ReplayBufferProxy,
    closing: ExitStack,
) -> EvaluationSite | None:
    match config.where:
        case "background":
            return BackgroundEvaluation(link, proxy)
        case "inline":
            evaluator = evaluate()
            closing.callback(evaluator.close)
            return InlineEvaluation(evaluator, learner)
        case "off":
            return None


def _manager(
    launcher: Launcher,
    bodies: Mapping[ActorId, MakeBody],
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
        bodies,
        config.supervision,
        interrupter,
        names={slot: f"the {name}" for slot, name in HELPERS.items()},
        most_actors=most_actors,
        first_incarnation=first_incarnation,
        on_exit=on_exit,
        on_restart=on_restart,
        on_drop=proxy.actors.on_drop,
    )
