"""Sampling throughput against its limit, both measured here, in turns, on the same processes.

The limit is the bare loop: the same policy, the same plain environments, the same columns
written, and nothing else. Trains nothing.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.agent import AgentConfig, PolicyContext
from asyncrl.async_config import AsyncConfig
from asyncrl.async_trainer import AsyncTrainer
from asyncrl.env import MakeBatchEnv
from asyncrl.errors import AsyncRLError
from asyncrl.launcher import Launcher, Progress
from asyncrl.launchers.local import LocalLauncher
from asyncrl.messages import Peer
from asyncrl.train import build_async_trainer
from asyncrl.types import ActorId

__all__ = ["SampleBenchmark", "SampleResult", "machine"]

_START_DEADLINE_S = 120.0
_WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleResult:
    """What `bench sample` found: medians over the repeats, and every single one."""

    env: str
    actors: int
    envs_per_actor: int
    env_steps_per_s: float
    limit_env_steps_per_s: float
    ratio: float
    """Median of the ratios of neighbouring measurements, not ratio of the medians."""

    repeats: list[dict[str, float]] = field(default_factory=list)
    machine: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBenchmark:
    """How fast actors fill the replay of a learner that does nothing else."""

    env: str
    make_plain: Callable[[], Any]
    """Makes one plain Gymnasium environment, for the bare loop."""

    make_batch: MakeBatchEnv
    agent: AgentConfig
    config: AsyncConfig
    envs_per_actor: int
    seconds: float
    repeats: int = 3

    def run(self) -> SampleResult:
        """Measure bare loop and actors in turns."""
        rounds = []
        for _ in range(self.repeats):
            limit = self._measure_bare_loop()
            value = self._measure_actors()
            rounds.append({"env_steps_per_s": value, "limit_env_steps_per_s": limit})
        return SampleResult(
            env=self.env,
            actors=self.config.actors,
            envs_per_actor=self.envs_per_actor,
            env_steps_per_s=statistics.median(r["env_steps_per_s"] for r in rounds),
            limit_env_steps_per_s=statistics.median(r["limit_env_steps_per_s"] for r in rounds),
            ratio=statistics.median(
                r["env_steps_per_s"] / r["limit_env_steps_per_s"] for r in rounds
            ),
            repeats=rounds,
            machine=machine(),
        )

    def _measure_bare_loop(self) -> float:
        peers = [Peer(actor_id=ActorId(i), incarnation=0) for i in range(self.config.actors)]
        with LocalLauncher() as launcher:
            for peer in peers:
                launcher.launch(peer, partial(_bare_loop, self, peer.actor_id))
            return _rate(lambda: _produced(launcher, peers), len(peers), self.seconds)

    def _measure_actors(self) -> float:
        probe = _Probe(self.config.actors, self.seconds)
        build_async_trainer(self.agent, self.make_batch, self.config, strategy=probe).train()
        return probe.rate


class _Probe:
    """A training loop that trains nothing and counts what arrives in replay."""

    def __init__(self, n_actors: int, seconds: float) -> None:
        self._n_actors = n_actors
        self._seconds = seconds
        self.rate = 0.0

    def run(self, trainer: AsyncTrainer) -> None:
        ledger, table = trainer.proxy.ledger, trainer.proxy.actors

        def stored() -> tuple[int, int]:
            trainer.interrupter.raise_if_failed()
            return ledger.balance().stored, len(table.rows())

        self.rate = _rate(stored, self._n_actors, self._seconds)
        trainer.interrupter.stop("measured")


def _rate(count: Callable[[], tuple[int, int]], wanted: int, seconds: float) -> float:
    """Return the count's growth per second, once `wanted` processes have got going."""
    deadline = time.monotonic() + _START_DEADLINE_S
    while count()[1] < wanted:
        if time.monotonic() > deadline:
            raise AsyncRLError(f"no {wanted} processes got going in {_START_DEADLINE_S:.0f} s")
        time.sleep(0.05)
    time.sleep(_WARM_UP_S)
    start, before = time.monotonic(), count()[0]
    time.sleep(seconds)
    return (count()[0] - before) / (time.monotonic() - start)


def _produced(launcher: Launcher, peers: list[Peer]) -> tuple[int, int]:
    if ended := launcher.exits(0.0):
        raise AsyncRLError(f"the bare loop failed: {ended[0].error}\n{ended[0].text}")
    reports = [launcher.progress(peer) for peer in peers]
    return sum(r.produced for r in reports), sum(r.turns > 0 for r in reports)


def _bare_loop(bench: SampleBenchmark, actor_id: int, progress: Progress) -> None:
    """Step plain environments with the policy and write columns, as a script by hand would."""
    n_envs = bench.envs_per_actor
    context = PolicyContext(
        seed=actor_id, actor_id=actor_id, n_actors=bench.config.actors, n_envs=n_envs
    )
    spec = bench.make_batch().spec
    policy = bench.agent.build_policy(spec, context)
    envs = [bench.make_plain() for _ in range(n_envs)]
    shape, rows = spec.observation.shape, 64
    obs = np.array([env.reset(seed=i)[0] for i, env in enumerate(envs)], spec.observation.dtype)
    columns = {
        "obs": np.zeros((rows, n_envs, *shape), spec.observation.dtype),
        "action": np.zeros((rows, n_envs, *spec.action.shape), spec.action.dtype),
        "reward": np.zeros((rows, n_envs), np.float32),
        "terminated": np.zeros((rows, n_envs), bool),
        "truncated": np.zeros((rows, n_envs), bool),
    }
    turn = 0
    while True:
        action = policy.act(obs).action
        row = turn % rows
        columns["obs"][row] = obs
        columns["action"][row] = action
        rewards, terminations, truncations = [], [], []
        # Python's own numbers: discrete environments are faster with them.
        acts = action.tolist() if action.ndim == 1 else action
        for i, (env, act) in enumerate(zip(envs, acts, strict=True)):
            after, reward, terminated, truncated, _ = env.step(act)
            if terminated or truncated:
                after, _ = env.reset()
            obs[i] = after
            rewards.append(reward)
            terminations.append(terminated)
            truncations.append(truncated)
        columns["reward"][row] = rewards
        columns["terminated"][row] = terminations
        columns["truncated"][row] = truncations
        turn += 1
        progress.turn(turn * n_envs)


def machine() -> dict[str, Any]:
    """Return what numbers depend on: processor, cores, versions."""
    names = ("torch", "numpy", "gymnasium", "pyzmq")
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    except OSError:
        models = []
    return models[0] if models else platform.processor()
