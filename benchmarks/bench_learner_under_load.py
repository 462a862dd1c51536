"""Do actors slow the learner down? Optimisation steps with actors streaming, against none.

Alone: the same agent samples from a full buffer of the same kind and optimises, on one core, with
nothing beside it. Loaded: the learner's whole turn in a run whose actors stream as fast as the
limiter lets them, once placed by the system and once with the learner on one core and
everything else on the others. Evaluation is off, as it is another process that wants a core.

    python -m benchmarks.bench_learner_under_load --agent sac
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import psutil
import torch

from asyncrl.actor.step_processor import OneStep
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import AgentConfig, PolicyContext
from asyncrl.core.env import DiscreteSpec, EnvSpec
from asyncrl.core.replay_buffer import ReplayBuffer
from asyncrl.core.segment import SegmentSchema, make_schema
from asyncrl.core.types import Array
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.async_trainer import AsyncTrainer, AsyncTrainerConfig
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.training.asynchronous import build_async_trainer
from asyncrl.training.config import AsyncConfig, EvaluationConfig
from benchmarks.common import (
    Rounds,
    compare,
    in_turns,
    make_parser,
    provenance,
    save,
    settings_of,
    show,
)

Measured = TypeVar("Measured")

UNIT = "opt steps/s"
_LEARNER_CORE = min(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One agent and its run."""

    agent: AgentConfig
    envs: EnvConfig
    config: AsyncConfig
    seconds: float
    threads: int
    """Of torch in the loaded learner; the one that is alone has one core and one thread."""


@dataclass(slots=True)
class Loaded:
    """A training loop that counts its turns for a while, and then ends the run."""

    seconds: float
    pinned: bool
    opt_steps_per_s: float = 0.0
    samples_per_insert: float = 0.0
    """While it was measured; the limiter's own number if actors kept up with it."""

    def run(self, trainer: AsyncTrainer) -> None:
        """Take turns: first until the speed has settled, then for counting."""
        while not trainer.books.counts.opt_steps and not trainer.should_stop:
            trainer.run_step()
        if self.pinned:
            _keep_apart()
        self._turns(trainer)
        stored = trainer.proxy.ledger.balance().stored
        opt_steps, elapsed = self._turns(trainer)
        stored = trainer.proxy.ledger.balance().stored - stored
        self.opt_steps_per_s = opt_steps / elapsed
        self.samples_per_insert = opt_steps * trainer.config.batch_size / max(stored, 1)
        trainer.interrupter.stop("measured")

    def _turns(self, trainer: AsyncTrainer) -> tuple[int, float]:
        before, began = trainer.books.counts.opt_steps, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < self.seconds and not trainer.should_stop:
            trainer.run_step()
        return trainer.books.counts.opt_steps - before, elapsed


def make_case(args: argparse.Namespace) -> Case:
    """Return the settings: 256x256 networks, and a replay that is full before learning starts."""
    agent: AgentConfig
    if args.agent == "sac":
        agent, env, batch_size = SACConfig(hidden=(256, 256), device="cpu"), "Pendulum-v1", 256
    else:
        agent, env, batch_size = DQNConfig(hidden=(256, 256), device="cpu"), "CartPole-v1", 64
    return Case(
        agent=agent,
        envs=EnvConfig(id=env, n_envs=args.envs_per_actor),
        config=AsyncConfig(
            actors=args.actors,
            replay=UniformReplayConfig(capacity=args.capacity),
            limiter=RateLimiterConfig(
                samples_per_insert=args.samples_per_insert, min_size=args.capacity
            ),
            trainer=AsyncTrainerConfig(batch_size=args.batch_size or batch_size),
            evaluation=EvaluationConfig(where="off"),
        ),
        seconds=args.seconds,
        threads=args.threads,
    )


def measure_alone(case: Case) -> float:
    """Return optimisation steps a second of the agent by itself, on one core."""
    os.sched_setaffinity(0, {_LEARNER_CORE})
    torch.set_num_threads(1)
    env = case.envs.build()
    spec = env.spec
    env.close()
    config = case.config
    columns = OneStep().columns(spec, case.agent.extra_columns(spec))
    schema = make_schema(columns, length=config.segment.length, lookahead=config.replay.lookahead)
    buffer = config.replay.build(schema, seed=0)
    fill(buffer, schema, spec)
    context = PolicyContext(seed=0, n_actors=config.actors, n_envs=case.envs.n_envs)
    agent = case.agent.build(spec, context)

    def learn() -> None:
        agent.opt(buffer.sample(config.trainer.batch_size))

    _repeat(learn, case.seconds)
    return _repeat(learn, case.seconds)


def measure_loaded(case: Case, *, pinned: bool) -> tuple[float, float]:
    """Return optimisation steps a second of the learner in a run, and samples per insert."""
    torch.set_num_threads(case.threads)
    loop = Loaded(seconds=case.seconds, pinned=pinned)
    build_async_trainer(case.agent, case.envs.build, case.config, strategy=loop).train()
    return loop.opt_steps_per_s, loop.samples_per_insert


def in_own_process(measure: Callable[[], Measured]) -> Measured:
    """Measure where no threads and no core are left over from the measurement before."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
        return pool.submit(measure).result()


def fill(buffer: ReplayBuffer, schema: SegmentSchema, spec: EnvSpec) -> None:
    """Push segments of made-up experience until the buffer makes room for no more of it."""
    random = np.random.default_rng(0)
    segments = 64
    shape = (segments, schema.rows)
    while True:
        columns = {c.name: np.zeros((*shape, *c.shape), c.dtype) for c in schema.columns}
        for name in ("obs", "reward"):
            columns[name][:] = _drawn(random, columns[name])
        if isinstance(spec.action, DiscreteSpec):
            columns["action"][:] = random.integers(spec.action.n, size=shape)
        else:
            low, high = spec.action.low, spec.action.high
            columns["action"][:] = random.uniform(low, high, columns["action"].shape)
        before = len(buffer)
        buffer.push(columns, np.full(segments, schema.rows, np.int64))
        if len(buffer) - before < segments * schema.length:
            return


def _drawn(random: np.random.Generator, like: Array) -> Array:
    if like.dtype == np.uint8:
        return random.integers(0, 256, like.shape, np.uint8)
    return random.standard_normal(like.shape)


def _keep_apart() -> None:
    """Give the learner's process a core, and the processes below it all others."""
    others = os.sched_getaffinity(0) - {_LEARNER_CORE}
    learner = psutil.Process()
    _place(learner, {_LEARNER_CORE})
    for process in learner.children(recursive=True):
        _place(process, others)


def _place(process: psutil.Process, cores: set[int]) -> None:
    for thread in process.threads():
        os.sched_setaffinity(thread.id, cores)


def _repeat(work: Callable[[], None], seconds: float) -> float:
    began, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        work()
        count += 1
    return count / elapsed


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--agent", choices=["sac", "dqn"], default="sac")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--envs-per-actor", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=0, help="0: 256 for SAC, 64 for DQN")
    parser.add_argument("--capacity", type=int, default=20_000, help="of the replay")
    parser.add_argument("--samples-per-insert", type=float, default=8.0)
    parser.add_argument("--threads", type=int, default=1, help="of torch, where loaded")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    return parser.parse_args()


def main() -> None:
    """Measure alone and loaded in turns."""
    args = arguments()
    origin = provenance()
    case = make_case(args)
    samples_per_insert: Rounds = {}

    def loaded(name: str, *, pinned: bool) -> float:
        opt_steps_per_s, ratio = in_own_process(partial(measure_loaded, case, pinned=pinned))
        samples_per_insert.setdefault(name, []).append(ratio)
        return opt_steps_per_s

    measures: dict[str, Callable[[], float]] = {
        "alone": lambda: in_own_process(partial(measure_alone, case)),
        "loaded": lambda: loaded("loaded", pinned=False),
    }
    if len(os.sched_getaffinity(0)) > 1:
        measures["loaded, pinned"] = lambda: loaded("loaded, pinned", pinned=True)
    rounds = in_turns(measures, args.repeats)
    words = f"{args.agent.upper()} 256x256, batches of {case.config.trainer.batch_size}"
    comparisons = [
        compare(rounds, name, "alone", what=f"{words}: {name} / alone on a core", unit=UNIT)
        for name in list(rounds)[1:]
    ]
    path = save(
        args.results,
        f"learner_under_load_{args.agent}",
        question=__doc__,
        settings=settings_of(args),
        comparisons=comparisons,
        origin=origin,
        details={"opt_steps_per_s": rounds, "samples_per_insert": samples_per_insert},
    )
    show(path)


if __name__ == "__main__":
    main()
