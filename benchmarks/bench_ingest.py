"""How much experience can be taken in while the learner learns?

Two streaming actors cost next to nothing to step: their environments repeat arrays and their
policy always does the same. Everything behind them is real: segments, messages, ZeroMQ, the
receiving thread, replay. Actors and receiving thread share one core; the learner has the other,
and takes its whole turns. Beside it, the same learner alone on its core. Actors stream once at the
rate that is to be borne, and once as fast as they can.

    python -m benchmarks.bench_ingest --kind cartpole
    python -m benchmarks.bench_ingest --kind frames
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import psutil
import torch

from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import Act, Agent, Policy, PolicyContext, PolicyWrapper
from asyncrl.core.env import BoxSpec, EnvSpec, EnvStep
from asyncrl.core.segment import ColumnSpec, SegmentConfig
from asyncrl.core.types import Array, Columns
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.training.asynchronous import build_async_trainer
from asyncrl.training.config import AsyncConfig, EvaluationConfig
from benchmarks.bench_learner_under_load import in_own_process
from benchmarks.common import Rounds, compare, in_turns, make_parser, note, provenance, save, show

_ACTORS = 2
_BATCH_SIZE = 256
_NAP_S = 0.002
_LAG_S = 0.1
"""An actor that is later than this does not catch up."""
_PROMISED, _FASTEST = "at the rate offered", "as fast as they can"
_LEARNER_CORE = max(os.sched_getaffinity(0))
_PENDULUM = (3, 1)  # numbers in an observation and in an action of what is learned from


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """What streams in, and how."""

    shape: tuple[int, ...]
    dtype: str
    envs: int
    length: int
    capacity: int
    seconds: float
    promised_per_s: float
    """Transitions that the learner is to bear."""

    limit_per_s: float = 0.0
    """Transitions that both actors together stream; 0 lets them go as fast as they can."""

    @property
    def spec(self) -> EnvSpec:
        """Observations of this kind, and one action between -1 and 1."""
        low, high = (0, 255) if self.dtype == "uint8" else (-10.0, 10.0)
        obs = BoxSpec(self.shape, self.dtype, np.full(self.shape, low), np.full(self.shape, high))
        bound = np.ones(_PENDULUM[1], np.float32)
        return EnvSpec(obs, BoxSpec(bound.shape, "float32", -bound, bound))


KINDS = {
    "cartpole": Ingest(
        shape=(4,),
        dtype="float32",
        envs=256,
        length=32,
        capacity=200_000,
        seconds=5.0,
        promised_per_s=1.05e6,
    ),
    "frames": Ingest(
        shape=(84, 84),
        dtype="uint8",
        envs=16,
        length=32,
        capacity=20_000,
        seconds=5.0,
        promised_per_s=1.25e9 / 84**2,
    ),
}


class Pace:
    """Keeps steps from coming faster than so many a second."""

    def __init__(self, steps_per_s: float) -> None:
        self._step_s = 1.0 / steps_per_s
        self._due = 0.0

    def nap_s(self, now: float) -> float:
        """Count a step, and return for how long to sleep before the next; short naps add up."""
        self._due = max(self._due, now - _LAG_S) + self._step_s
        ahead = self._due - now
        return ahead if ahead > _NAP_S else 0.0


class Streaming:
    """Environments that cost nothing: the same arrays at every step, no episode's end.

    Where there is a limit, they sleep for what they are ahead of it.
    """

    def __init__(self, ingest: Ingest) -> None:
        steps_per_s = ingest.limit_per_s / (_ACTORS * ingest.envs)
        self._pace = Pace(steps_per_s) if steps_per_s else None
        self.spec, self.n_envs = ingest.spec, ingest.envs
        random = np.random.default_rng(0)
        shape = (self.n_envs, *ingest.shape)
        self._obs = random.integers(0, 9, shape).astype(ingest.dtype)
        self._reward = np.ones(self.n_envs, np.float32)
        self._never = np.zeros(self.n_envs, bool)

    def reset(self, seed: int) -> Array:
        """Return the observations there are."""
        return self._obs

    def step(self, action: Array) -> EnvStep:
        """Return them again."""
        if self._pace is not None and (nap_s := self._pace.nap_s(time.perf_counter())):
            time.sleep(nap_s)
        return EnvStep(self._obs, self._reward, self._never, self._never, self._obs)

    def close(self) -> None:
        """Hold nothing."""


class _Still(PolicyWrapper):
    """Always does the same."""

    def __init__(self, policy: Policy, n_envs: int) -> None:
        super().__init__(policy)
        self._action = np.zeros((n_envs, _PENDULUM[1]), np.float32)

    def act(self, obs: Array) -> Act:
        return Act(self._action)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LearnerConfig:
    """SAC of 256x256, whatever streams in; its actors stand still."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> Agent:
        return _make_agent()

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> Policy:
        return _Still(_make_agent(), context.n_envs)

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        return ()


def _make_agent() -> Agent:
    ones = np.ones(3, np.float32)
    spec = EnvSpec(
        BoxSpec((3,), "float32", -ones, ones), BoxSpec((1,), "float32", -ones[:1], ones[:1])
    )
    return SACConfig(hidden=(256, 256), device="cpu").build(spec, PolicyContext(seed=0))


def _fixed_batch() -> Columns:
    random = np.random.default_rng(0)

    def numbers(*shape: int) -> Array:
        return random.uniform(-1, 1, shape).astype(np.float32)

    return {
        "obs": numbers(_BATCH_SIZE, _PENDULUM[0]),
        "next_obs": numbers(_BATCH_SIZE, _PENDULUM[0]),
        "action": numbers(_BATCH_SIZE, _PENDULUM[1]),
        "reward": numbers(_BATCH_SIZE),
        "discount": np.full(_BATCH_SIZE, 0.99, np.float32),
        "model_version": np.zeros(_BATCH_SIZE, np.int32),
    }


class _Beside:
    """A training loop that learns from one batch, and counts what is stored meanwhile."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.opt_steps_per_s = 0.0
        self.stored_per_s = 0.0

    def run(self, trainer: AsyncTrainer) -> None:
        """Learn until the speed has settled, then learn and count."""
        batch = _fixed_batch()
        while len(trainer.proxy.actors.rows()) < _ACTORS and not trainer.should_stop:
            time.sleep(0.05)
        _keep_apart()
        self._learn(trainer, batch)
        before, began = trainer.proxy.ledger.balance().stored, time.perf_counter()
        self.opt_steps_per_s = self._learn(trainer, batch)
        elapsed = time.perf_counter() - began
        self.stored_per_s = (trainer.proxy.ledger.balance().stored - before) / elapsed
        trainer.interrupter.stop("measured")

    def _learn(self, trainer: AsyncTrainer, batch: Columns) -> float:
        opt_steps, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < self._seconds and not trainer.should_stop:
            trainer.learn(batch)
            trainer.keep_books()
            opt_steps += 1
        return opt_steps / elapsed


def _keep_apart() -> None:
    """Give the learner's main thread a core, and everything else the others."""
    others = os.sched_getaffinity(0) - {_LEARNER_CORE} or {_LEARNER_CORE}
    learner = psutil.Process()
    for process in (learner, *learner.children(recursive=True)):
        for thread in process.threads():
            os.sched_setaffinity(thread.id, others)
    os.sched_setaffinity(threading.get_native_id(), {_LEARNER_CORE})


def measure_beside(ingest: Ingest) -> tuple[float, float]:
    """Return optimisation steps and stored transitions a second."""
    torch.set_num_threads(1)
    loop = _Beside(ingest.seconds)
    config = AsyncConfig(
        actors=_ACTORS,
        segment=SegmentConfig(length=ingest.length),
        replay=UniformReplayConfig(capacity=ingest.capacity),
        limiter=RateLimiterConfig(samples_per_insert=0.0),
        evaluation=EvaluationConfig(where="off"),
    )
    make = partial(Streaming, ingest)
    build_async_trainer(_LearnerConfig(), make, config, strategy=loop).train()
    return loop.opt_steps_per_s, loop.stored_per_s


def measure_alone(seconds: float) -> float:
    """Return the learner's optimisation steps a second with nothing beside it."""
    os.sched_setaffinity(0, {_LEARNER_CORE})
    torch.set_num_threads(1)
    agent, batch = _make_agent(), _fixed_batch()

    def learn() -> float:
        opt_steps, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds:
            agent.opt(batch)
            opt_steps += 1
        return opt_steps / elapsed

    learn()
    return learn()


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--kind", choices=list(KINDS), default="cartpole")
    return parser.parse_args()


def main() -> None:
    """Measure beside and alone in turns."""
    args = arguments()
    ingest, origin = KINDS[args.kind], provenance()
    row_bytes = int(np.prod(ingest.shape)) * np.dtype(ingest.dtype).itemsize
    stored: dict[str, Rounds] = {}

    def beside(name: str, limit_per_s: float) -> float:
        limited = replace(ingest, limit_per_s=limit_per_s)
        opt_steps_per_s, stored_per_s = in_own_process(partial(measure_beside, limited))
        rates = stored.setdefault(name, {"transitions_per_s": [], "obs_bytes_per_s": []})
        rates["transitions_per_s"].append(stored_per_s)
        rates["obs_bytes_per_s"].append(stored_per_s * row_bytes)
        note(f"stored {stored_per_s:,.0f} transitions/s, {stored_per_s * row_bytes / 1e9:.2f} GB/s")
        return opt_steps_per_s

    measures: dict[str, Callable[[], float]] = {
        "alone": lambda: in_own_process(partial(measure_alone, ingest.seconds)),
        _PROMISED: lambda: beside(_PROMISED, ingest.promised_per_s),
        _FASTEST: lambda: beside(_FASTEST, 0.0),
    }
    rounds = in_turns(measures, args.repeats)
    what = f"SAC 256x256 learning while {args.kind} stream in"
    comparisons = [
        compare(rounds, n, "alone", what=f"{what} {n} / alone on its core", unit="opt steps/s")
        for n in (_PROMISED, _FASTEST)
    ]
    path = save(
        args.results,
        f"ingest_{args.kind}",
        question=__doc__,
        settings={
            "kind": args.kind,
            "repeats": args.repeats,
            "promised_per_s": ingest.promised_per_s,
        },
        comparisons=comparisons,
        origin=origin,
        details={"opt_steps_per_s": rounds, "stored": stored},
    )
    show(path)


if __name__ == "__main__":
    main()
