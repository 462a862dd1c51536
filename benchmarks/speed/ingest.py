"""How much slower the learner is while it receives experience, compared with the learner alone.

`cartpole` and `frames` measure how much can be received. Steps of the two streaming actors take
almost no time: their environments repeat arrays and their policy is constant. The rest is real:
segments, messages, ZeroMQ, the receiving thread, replay. Actors and receiving thread share one
core; the learner has the other and learns from one batch. Actors stream at the required rate,
then as fast as they can.

`sac` and `dqn` measure the cost of real actors. The learner's whole loop runs while actors stream
as fast as the limiter allows, first with cores chosen by the system, then with the learner on one
core and everything else on the others. Evaluation is off, since it is another process that needs
a core. Alone, the agent samples from a full buffer of the same kind, on one core.

    python -m benchmarks.speed.ingest --kind cartpole
    python -m benchmarks.speed.ingest --kind sac
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import psutil
import torch

from asyncrl.actor.step_processor import OneStep
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import Act, Agent, AgentConfig, Policy, PolicyContext, PolicyWrapper
from asyncrl.core.env import BatchEnv, BoxSpec, EnvSpec, EnvStep
from asyncrl.core.segment import ColumnSpec, SegmentConfig, make_schema
from asyncrl.core.types import Array, Columns
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer
from asyncrl.tools.bench.load import synthetic_experience
from asyncrl.tools.bench.measure import Repeating
from asyncrl.tools.bench.stage_learner import Turns, filled
from benchmarks.common import (
    Comparison,
    Rounds,
    compare,
    in_turns,
    keep,
    make_parser,
    note,
    provenance,
)

UNIT = "opt steps/s"
ALONE = "alone"

_ACTORS = 2
_NAP_S = 0.002
_LAG_S = 0.1
"""A stream that is later than this does not catch up."""

_LEARNER_CORE = max(os.sched_getaffinity(0))
_PENDULUM = (3, 1)  # numbers in an observation and in an action of what is learned from

Placed = Literal["by the system", "process", "thread"]
"""Which has a core to itself: nothing, the learner's process, or only its main thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A learner, and the experience that it receives meanwhile."""

    agent: AgentConfig
    make_envs: Callable[[], BatchEnv]
    config: RunConfig
    seconds: float
    placed: Placed = "by the system"
    threads: int = 1
    """Threads of torch in the learner."""

    fixed: bool = False
    """Whether the learner learns from one fixed batch of Pendulum, not from what it receives."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Rates per second of one run."""

    opt_steps: float
    stored: float = 0.0


class Counting:
    """A training loop that runs until its speed has settled, then counts."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.measured = Measured(0.0)

    def run(self, trainer: AsyncTrainer) -> None:
        """Wait for all actors, measure, and end the run."""
        turn: Callable[[], object] = trainer.run_step
        if self._load.fixed:
            turn = partial(_learn, trainer, _fixed_batch())
            while len(trainer.proxy.actors.rows()) < _ACTORS and not trainer.should_stop:
                time.sleep(0.05)
        while not trainer.services.counts.opt_steps and not trainer.should_stop:
            turn()
        _place(self._load.placed)
        self._turns(trainer, turn)
        self.measured = self._turns(trainer, turn)
        trainer.interrupter.stop("measured")

    def _turns(self, trainer: AsyncTrainer, turn: Callable[[], object]) -> Measured:
        counts, ledger = trainer.services.counts, trainer.proxy.ledger
        opt_steps, stored, began = counts.opt_steps, ledger.balance().stored, time.perf_counter()
        while time.perf_counter() - began < self._load.seconds and not trainer.should_stop:
            turn()
        elapsed = time.perf_counter() - began
        return Measured(
            (counts.opt_steps - opt_steps) / elapsed, (ledger.balance().stored - stored) / elapsed
        )


def measure_beside(load: Load) -> Measured:
    """Measure the learner of a run."""
    torch.set_num_threads(load.threads)
    loop = Counting(load)
    agent, make_envs = load.agent, load.make_envs
    build_trainer(load.config, agent=agent, env=make_envs, strategy=loop, recorder=None).train()
    return loop.measured


def measure_alone(load: Load) -> Measured:
    """Measure the agent by itself, on one core."""
    os.sched_setaffinity(0, {_LEARNER_CORE})
    torch.set_num_threads(1)
    env, config = load.make_envs(), load.config
    env.close()
    context = PolicyContext(seed=0, n_actors=config.actors, n_envs=env.n_envs)
    agent = load.agent.build(env.spec, context)
    turn: Callable[[], int]
    if load.fixed:
        turn = partial(_opt, agent, _fixed_batch())
    else:
        columns = OneStep().columns(env.spec, load.agent.extra_columns(env.spec))
        length, lookahead = config.segment.length, config.replay.lookahead
        schema = make_schema(columns, length=length, lookahead=lookahead)
        buffer = filled(config.replay, schema, synthetic_experience(schema, env.spec, 64))
        turn = Turns(agent, buffer, config.trainer.batch_size).from_replay
    return Measured(Repeating(turn, warm_up_seconds=load.seconds).rate(load.seconds))


def in_own_process(measure: Callable[[Load], Measured], load: Load) -> Measured:
    """Measure in a process without threads or core affinity of the previous measurement."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
        return pool.submit(measure, load).result()


def _opt(agent: Agent, batch: Columns) -> int:
    agent.opt(batch)
    return 1


def _learn(trainer: AsyncTrainer, batch: Columns) -> None:
    trainer.learn(batch)
    trainer.run_services()


def _place(placed: Placed) -> None:
    if placed == "by the system":
        return
    others = os.sched_getaffinity(0) - {_LEARNER_CORE} or {_LEARNER_CORE}
    learner = psutil.Process()
    for process in (learner, *learner.children(recursive=True)):
        own = placed == "process" and process == learner
        for thread in process.threads():
            os.sched_setaffinity(thread.id, {_LEARNER_CORE} if own else others)
    os.sched_setaffinity(threading.get_native_id(), {_LEARNER_CORE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Arrays that are sent repeatedly."""

    shape: tuple[int, ...]
    dtype: str
    envs: int
    capacity: int
    promised_per_s: float
    """Transitions that the learner must receive, from all actors together."""

    @property
    def row_bytes(self) -> int:
        """Return the bytes of an observation."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


STREAMS = {
    "cartpole": Stream(
        shape=(4,), dtype="float32", envs=256, capacity=200_000, promised_per_s=1.05e6
    ),
    "frames": Stream(
        shape=(84, 84), dtype="uint8", envs=16, capacity=20_000, promised_per_s=1.25e9 / 84**2
    ),
}


class Pace:
    """Limits the rate of steps per second."""

    def __init__(self, steps_per_s: float) -> None:
        self._step_s = 1.0 / steps_per_s
        self._due = 0.0

    def nap_s(self, now: float) -> float:
        """Count a step, and return for how long to sleep before the next; short naps add up."""
        self._due = max(self._due, now - _LAG_S) + self._step_s
        ahead = self._due - now
        return ahead if ahead > _NAP_S else 0.0


class Streaming:
    """Environments without cost: the same arrays at every step, endless episodes.

    With a limit, they sleep while they are ahead of it.
    """

    def __init__(self, stream: Stream, limit_per_s: float = 0.0) -> None:
        self._pace = Pace(limit_per_s / (_ACTORS * stream.envs)) if limit_per_s else None
        self.n_envs = stream.envs
        low, high = (0, 255) if stream.dtype == "uint8" else (-10.0, 10.0)
        bounds = np.full(stream.shape, low), np.full(stream.shape, high)
        self.spec = EnvSpec(BoxSpec(stream.shape, stream.dtype, *bounds), _unit_box(_PENDULUM[1]))
        random = np.random.default_rng(0)
        self._obs = random.integers(0, 9, (self.n_envs, *stream.shape)).astype(stream.dtype)
        self._reward = np.ones(self.n_envs, np.float32)
        self._never = np.zeros(self.n_envs, bool)

    def reset(self, seed: int) -> Array:
        """Return the observations."""
        return self._obs

    def step(self, action: Array) -> EnvStep:
        """Return them again."""
        if self._pace is not None and (nap_s := self._pace.nap_s(time.perf_counter())):
            time.sleep(nap_s)
        return EnvStep(self._obs, self._reward, self._never, self._never, self._obs)

    def close(self) -> None:
        """There is nothing to close."""


class _NoOpPolicy(PolicyWrapper):
    """Always returns the same actions."""

    def __init__(self, policy: Policy, n_envs: int) -> None:
        super().__init__(policy)
        self._action = np.zeros((n_envs, _PENDULUM[1]), np.float32)

    def act(self, obs: Array) -> Act:
        return Act(self._action)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NoOpConfig:
    """SAC of 256x256 on Pendulum, whatever the stream; its actors stand still."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> Agent:
        pendulum = EnvSpec(_unit_box(_PENDULUM[0]), _unit_box(_PENDULUM[1]))
        return SACConfig(hidden=(256, 256), device="cpu").build(pendulum, PolicyContext(seed=0))

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> Policy:
        return _NoOpPolicy(self.build(spec, context), context.n_envs)

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        return ()


def _unit_box(n: int) -> BoxSpec:
    ones = np.ones(n, np.float32)
    return BoxSpec((n,), "float32", -ones, ones)


def _fixed_batch() -> Columns:
    random, size = np.random.default_rng(0), 256

    def numbers(*shape: int) -> Array:
        return random.uniform(-1, 1, shape).astype(np.float32)

    return {
        "obs": numbers(size, _PENDULUM[0]),
        "next_obs": numbers(size, _PENDULUM[0]),
        "action": numbers(size, _PENDULUM[1]),
        "reward": numbers(size),
        "discount": np.full(size, 0.99, np.float32),
        "model_version": np.zeros(size, np.int32),
    }


def loads_of_stream(kind: str, args: argparse.Namespace) -> dict[str, Load]:
    """Return the loads to measure of a stream, by name."""
    stream = STREAMS[kind]
    config = RunConfig(
        actors=_ACTORS,
        segment=SegmentConfig(length=32),
        replay=UniformReplayConfig(capacity=stream.capacity),
        limiter=RateLimiterConfig(samples_per_insert=0.0),
        evaluate=EvaluationConfig(where="off"),
    )
    limits = {"at the rate offered": stream.promised_per_s, "as fast as they can": 0.0}
    return {
        name: Load(
            agent=_NoOpConfig(),
            make_envs=partial(Streaming, stream, limit),
            config=config,
            seconds=args.seconds,
            placed="thread",
            fixed=True,
        )
        for name, limit in {ALONE: 0.0, **limits}.items()
    }


def loads_of_agent(kind: str, args: argparse.Namespace) -> dict[str, Load]:
    """Return the loads to measure of an agent: 256x256 networks, and a full replay."""
    agent: AgentConfig = DQNConfig(hidden=(256, 256), device="cpu")
    env, batch_size = "CartPole-v1", 64
    if kind == "sac":
        agent, env, batch_size = SACConfig(hidden=(256, 256), device="cpu"), "Pendulum-v1", 256
    config = RunConfig(
        actors=_ACTORS,
        replay=UniformReplayConfig(capacity=args.capacity),
        limiter=RateLimiterConfig(samples_per_insert=8.0, min_size=args.capacity),
        trainer=AsyncTrainerConfig(batch_size=batch_size),
        evaluate=EvaluationConfig(where="off"),
    )
    names: dict[str, Placed] = {ALONE: "by the system", "loaded": "by the system"}
    if len(os.sched_getaffinity(0)) > 1:
        names["loaded, pinned"] = "process"
    return {
        name: Load(
            agent=agent,
            make_envs=EnvConfig(id=env, n_envs=8).build,
            config=config,
            seconds=args.seconds,
            placed=placed,
            threads=args.threads,
        )
        for name, placed in names.items()
    }


def compare_all(kind: str, rounds: Rounds, batch_size: int) -> list[Comparison]:
    """Compare each load with the learner alone."""
    words = f"{kind.upper()} 256x256, batches of {batch_size}: {{}} / alone on a core"
    if kind in STREAMS:
        words = f"SAC 256x256 learning while {kind} stream in {{}} / alone on its core"
    return [
        compare(rounds, name, ALONE, what=words.format(name), unit=UNIT)
        for name in rounds
        if name != ALONE
    ]


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__, repeats=3)
    parser.add_argument("--kind", choices=[*STREAMS, "sac", "dqn"], default="cartpole")
    parser.add_argument("--capacity", type=int, default=20_000, help="of the agents' replay")
    parser.add_argument("--threads", type=int, default=1, help="of torch, where actors are real")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    return parser.parse_args()


def main() -> None:
    """Measure with and without the load, in turns."""
    args, origin = arguments(), provenance()
    streams = args.kind in STREAMS
    loads = (loads_of_stream if streams else loads_of_agent)(args.kind, args)
    stored: Rounds = {}

    def measure(name: str) -> float:
        found = in_own_process(measure_alone if name == ALONE else measure_beside, loads[name])
        if name != ALONE:
            stored.setdefault(name, []).append(found.stored)
            note(f"stored {found.stored:,.0f} transitions/s")
        return found.opt_steps

    rounds = in_turns({name: partial(measure, name) for name in loads}, args.repeats)
    batch_size = loads[ALONE].config.trainer.batch_size
    details: dict[str, object] = {"opt_steps_per_s": rounds, "transitions_per_s": stored}
    if streams:
        row_bytes = STREAMS[args.kind].row_bytes
        details["obs_bytes_per_s"] = {n: [v * row_bytes for v in r] for n, r in stored.items()}
    else:
        details["samples_per_insert"] = {
            name: [
                steps * batch_size / max(inserted, 1.0)
                for steps, inserted in zip(rounds[name], rates, strict=True)
            ]
            for name, rates in stored.items()
        }
    name = f"ingest_{args.kind}" if streams else f"learner_under_load_{args.kind}"
    comparisons = compare_all(args.kind, rounds, batch_size)
    keep(args, name, __doc__, comparisons, origin=origin, details=details)


if __name__ == "__main__":
    main()
