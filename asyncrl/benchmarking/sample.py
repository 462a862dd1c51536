"""Stage `sample`: actors with a policy fill the replay of a learner that does nothing else."""

from __future__ import annotations

import time
from functools import partial

from asyncrl.benchmarking.bare_envs import play_native, play_plain
from asyncrl.benchmarking.load import Load
from asyncrl.benchmarking.rates import Count, growth_rate, wait_until_going
from asyncrl.benchmarking.result import Quantity
from asyncrl.benchmarking.rounds import Rates
from asyncrl.benchmarking.workload import Workload
from asyncrl.core.agent import PolicyContext
from asyncrl.core.errors import AsyncRLError
from asyncrl.core.launcher import Launcher, Progress
from asyncrl.core.messages import Peer
from asyncrl.core.types import ActorId
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.supervision.local import LocalLauncher
from asyncrl.training.asynchronous import build_async_trainer

_PRELOAD = ("asyncrl.agents.parts.torch_agent", "asyncrl.envs.gym")


class SampleStage:
    """Actors against a bare loop on as many processes: policy, environments, columns written."""

    slices = 1

    def __init__(self, load: Load) -> None:
        workload = load.workload
        self._load = load
        self.quantities = (
            Quantity(
                stage="sample",
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
            ),
        )

    def measure_value(self) -> Rates:
        """Count what arrives in replay."""
        probe = _Probe(self._load)
        load = self._load
        build_async_trainer(
            load.agent, load.workload.env_config.build, load.async_config(), strategy=probe
        ).train()
        return [probe.rate]

    def measure_limit(self) -> Rates:
        """Count what the bare loops have produced."""
        workload = self._load.workload
        peers = [Peer(actor_id=ActorId(i), incarnation=0) for i in range(workload.actors)]
        with LocalLauncher(preload=_PRELOAD) as launcher:
            for peer in peers:
                launcher.launch(peer, partial(_bare_loop, self._load, peer.actor_id))
            return [_rate(lambda: _produced(launcher, peers), workload, "bare loops")]

    def close(self) -> None:
        """Have nothing to release: each measurement ends its processes."""


class _Probe:
    """A training loop that trains nothing and counts what arrives in replay."""

    def __init__(self, load: Load) -> None:
        self._workload = load.workload
        self.rate = 0.0

    def run(self, trainer: AsyncTrainer) -> None:
        self.rate = _rate(lambda: stored_by(trainer), self._workload, "actors")
        trainer.interrupter.stop("measured")


def stored_by(trainer: AsyncTrainer) -> tuple[int, int]:
    """Return how many transitions a run has stored, and how many actors have sent any.

    Raises the error of whichever part of the run has failed.
    """
    trainer.interrupter.raise_if_failed()
    return trainer.proxy.ledger.balance().stored, len(trainer.proxy.actors.rows())


def _rate(count: Count, workload: Workload, what: str) -> float:
    wait_until_going(count, workload.actors, what)
    time.sleep(workload.warm_up_seconds)
    return growth_rate(count, workload.seconds)


def _produced(launcher: Launcher, peers: list[Peer]) -> tuple[int, int]:
    if ended := launcher.exits(0.0):
        raise AsyncRLError(f"the bare loop failed: {ended[0].error}\n\n{ended[0].text}")
    reports = [launcher.progress(peer) for peer in peers]
    return sum(r.produced for r in reports), sum(r.turns > 0 for r in reports)


def _bare_loop(load: Load, actor_id: int, progress: Progress) -> None:
    """Play for ever, in a process of its own."""
    workload = load.workload
    context = PolicyContext(
        seed=actor_id, actor_id=actor_id, n_actors=workload.actors, n_envs=workload.envs_per_actor
    )
    policy = load.agent.build_policy(load.spec, context)
    config = workload.env_config
    if config.vectorization == "native":
        play_native(config.make_vector(), policy, load.spec, progress)
    else:
        envs = [config.make_plain() for _ in range(config.n_envs)]
        play_plain(envs, policy, load.spec, progress)
