"""Stages `sample` and `train`: actors with a policy fill the replay, without and with a learner."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

from asyncrl.core.agent import PolicyContext
from asyncrl.core.errors import AsyncRLError
from asyncrl.core.inference import compute_fast
from asyncrl.core.interrupter import CrashForwardingThread, start_thread
from asyncrl.core.launcher import Launcher, Progress, Spec
from asyncrl.core.messages import Peer
from asyncrl.core.types import ActorId
from asyncrl.fleet.local import LocalLauncher
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.run.train import build_trainer
from asyncrl.tools.bench.load import Load
from asyncrl.tools.bench.measure import Count, Rates, Stage, growth_rate, wait_until_running
from asyncrl.tools.bench.result import Quantity
from asyncrl.tools.bench.stage_env import play_native, play_plain
from asyncrl.tools.bench.stage_learner import learner_stage
from asyncrl.tools.bench.workload import Workload

_PRELOAD = ("asyncrl.agents.parts.torch_agent", "asyncrl.envs.gym")


def sample_stage(load: Load, *, served: bool = False) -> Stage:
    """Return actors against a bare loop in as many processes: policy, environments, columns.

    With `served`, a server of inference computes the actors' networks.
    """
    workload = load.workload
    quantity = Quantity(
        stage="sample",
        case="inference server" if served else "",
        env=workload.env,
        unit="agent steps/s",
        limit_is=f"bare loop, {workload.actors} processes",
        frame_skip=load.frame_skip,
        settings={
            **workload.env_settings(),
            "actors": workload.actors,
            "segment_length": workload.segment_length,
            "frame_stack": load.frame_stack,
            "hidden": list(workload.hidden),
        },
    )
    return Stage(
        quantities=[quantity],
        value=lambda: [_sampled(load, served=served)],
        limit=lambda: [_played_bare(load)],
    )


def _sampled(load: Load, *, served: bool = False) -> float:
    """Count what arrives in replay."""
    probe = _Probe(load)
    config = replace(load.async_config(), inference="server" if served else "actor")
    make_env = load.workload.env_config.build
    build_trainer(config, agent=load.agent, env=make_env, strategy=probe, recorder=None).train()
    return probe.rate


def _played_bare(load: Load) -> float:
    """Count what the bare loops produce."""
    peers = [Peer(actor_id=ActorId(i), incarnation=0) for i in range(load.workload.actors)]
    with LocalLauncher(preload=_PRELOAD) as launcher:
        for peer in peers:
            launcher.launch(peer, _BareLoop(load))
        return _rate(lambda: _produced(launcher, peers), load.workload, "bare loops")


class _Probe:
    """A training loop that does not optimise and counts what arrives in replay."""

    def __init__(self, load: Load) -> None:
        self._workload = load.workload
        self.rate = 0.0

    def run(self, trainer: AsyncTrainer) -> None:
        self.rate = _rate(lambda: stored_by(trainer), self._workload, "actors")
        trainer.interrupter.stop("measured", urgent=True)  # it was not there to learn


def stored_by(trainer: AsyncTrainer) -> tuple[int, int]:
    """Return the number of transitions that a run has stored, and of actors that have sent some.

    Raises the error of any part of the run that failed.
    """
    trainer.interrupter.raise_if_failed()
    return trainer.proxy.ledger.balance().stored, len(trainer.proxy.actors.rows())


def _rate(count: Count, workload: Workload, what: str) -> float:
    wait_until_running(count, workload.actors, what)
    time.sleep(workload.warm_up_seconds)
    return growth_rate(count, workload.seconds)


def _produced(launcher: Launcher, peers: list[Peer]) -> tuple[int, int]:
    if ended := launcher.exits(0.0):
        raise AsyncRLError(f"the bare loop failed: {ended[0].error}\n\n{ended[0].text}")
    reports = [launcher.progress(peer) for peer in peers]
    return sum(r.produced for r in reports), sum(r.turns > 0 for r in reports)


@dataclass(frozen=True, slots=True)
class _BareLoop(Spec):
    """The bare loop, without end, in a separate process."""

    load: Load

    def run(self, peer: Peer, progress: Progress) -> None:
        """Play."""
        load, number = self.load, peer.actor_id
        config, n_actors = load.workload.env_config, load.workload.actors
        context = PolicyContext(
            seed=number, actor_id=number, n_actors=n_actors, n_envs=config.n_envs
        )
        policy = load.agent.build_policy(load.spec, context)
        compute_fast(policy, one_thread=True)  # as in actors
        if config.vectorization == "native":
            play_native(config.make_vector(), policy, load.spec, progress)
        else:
            envs = [config.make_plain() for _ in range(config.n_envs)]
            play_plain(envs, policy, load.spec, progress)


def train_stage(load: Load) -> Stage:
    """Return both sides at full speed: no rate limiter makes one wait for the other.

    Their limits are the learner without actors, and actors without a learner.
    """
    workload = load.workload
    learner = learner_stage(load, slices=1)
    settings = {
        **workload.env_settings(),
        **learner.quantities[0].settings,
        "actors": workload.actors,
        "segment_length": workload.segment_length,
        "frame_stack": load.frame_stack,
    }
    quantities = (
        Quantity(
            stage="train",
            case="learner",
            env=workload.env,
            unit="opt steps/s",
            limit_is="learner alone",
            settings=settings,
        ),
        Quantity(
            stage="train",
            case="actors",
            env=workload.env,
            unit="agent steps/s",
            limit_is="actors alone",
            frame_skip=load.frame_skip,
            settings=settings,
        ),
    )

    def both() -> Rates:
        loop, make_env = _Loop(load), workload.env_config.build
        build_trainer(
            load.async_config(), agent=load.agent, env=make_env, strategy=loop, recorder=None
        ).train()
        return loop.rates

    return Stage(
        quantities=quantities,
        value=both,
        limit=lambda: [*learner.value(), _sampled(load)],
        release=learner.close,
    )


class _Loop:
    """A training loop that ends after a thread has counted both sides for a while."""

    def __init__(self, load: Load) -> None:
        self._workload = load.workload
        self.rates: Rates = ()

    def run(self, trainer: AsyncTrainer) -> None:
        counter = CrashForwardingThread(
            trainer.interrupter, partial(self._count, trainer), "asyncrl-bench"
        )
        start_thread(counter)
        while not trainer.should_stop:
            trainer.run_step()
        counter.join()

    def _count(self, trainer: AsyncTrainer) -> None:
        counts = trainer.services.counts

        def count() -> tuple[int, int]:
            stored, actors = stored_by(trainer)
            return stored, min(actors, counts.opt_steps)

        wait_until_running(count, self._workload.actors, "actors")
        time.sleep(self._workload.warm_up_seconds)
        began, opt_steps = time.monotonic(), counts.opt_steps
        env_steps_per_s = growth_rate(count, self._workload.seconds)
        opt_steps_per_s = (counts.opt_steps - opt_steps) / (time.monotonic() - began)
        self.rates = [opt_steps_per_s, env_steps_per_s]
        trainer.interrupter.stop("measured")
