"""What do actors on hosts cost? 64 that sleep, and two that compute: local, joined, and on Ray.

Hosts are processes of this machine, which a learner reaches as it does those of others. Sleeping
environments stand for slow ones: the rate is compared with 64 times that of one actor. With `ray`,
four nodes of a local cluster have one host each. The delayed case passes a proxy both ways, and so
does what it is compared with.

    python -m benchmarks.speed.hosts [--cases CASE ...]
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.env import MakeBatchEnv
from asyncrl.core.segment import SegmentConfig
from asyncrl.envs.gym import make_batch
from asyncrl.extensions.ray.hosts import on_ray
from asyncrl.fleet.config import RayConfig
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.config import RateLimiterConfig
from asyncrl.run.join import join_run
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer
from asyncrl.tools.bench.measure import growth_rate
from asyncrl.transport.zeromq import ZmqTransportConfig
from benchmarks.common import Comparison, Rounds, compare, in_turns, keep, make_parser, provenance
from benchmarks.machines import MARK, marked
from benchmarks.proxy import Proxy

ASLEEP_S = 0.01
_DEADLINE_S = 120.0

_CLUSTER = """
import signal, sys
from ray.cluster_utils import Cluster
cluster = Cluster()
for _ in range(4):
    cluster.add_node(num_cpus=16, object_store_memory=80_000_000, include_dashboard=False)
def reap(*_):
    for node in cluster.list_all_nodes():
        for started in node.all_processes.values():
            for one in started:
                one.process.poll()
signal.signal(signal.SIGCHLD, reap)  # workers of a raylet do not end while it is a zombie
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
_HOST = "import sys; from benchmarks.speed.hosts import serve; serve(*sys.argv[1:])"


class Sleeper(gymnasium.Env[Any, Any]):
    """An environment whose step takes time, but no CPU time."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
        """Begin an episode that never ends."""
        return np.zeros(4, np.float32), {}

    def step(self, _: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Sleep."""
        time.sleep(ASLEEP_S)
        return np.zeros(4, np.float32), 0.0, False, False, {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One arrangement of actors."""

    where: str
    """`local`, `join` or `ray`."""

    actors: int
    asleep: bool
    hosts: int = 1
    delay_s: float | None = None
    """Delay of a proxy, each way; None does without a proxy."""

    envs: int = 64
    """Environments of each actor that computes."""

    length: int = 32
    """Rows per segment."""

    @property
    def make_env(self) -> MakeBatchEnv:
        """Builds an actor's environments."""
        make: Any = Sleeper if self.asleep else partial(gymnasium.make, "CartPole-v1")
        return make_batch(make, 1 if self.asleep else self.envs)

    def config(self, **transport: Any) -> RunConfig:  # noqa: ANN401
        """Return the settings of the run, which hosts must share."""
        launchers = {"local": "process", "join": "hosts", "ray": "ray"}
        return RunConfig(
            actors=self.actors,
            launcher=launchers[self.where],  # type: ignore[arg-type]
            segment=SegmentConfig(length=self.length),
            limiter=RateLimiterConfig(samples_per_insert=0.0),
            evaluate=EvaluationConfig(where="off"),
            transport=ZmqTransportConfig(bind="tcp://127.0.0.1", **transport),
        )


def serve(key: str, case: str, room: str) -> None:
    """Be a host."""
    one = Case(**json.loads(case))
    join_run(key, DQNConfig(), one.make_env, one.config(), actors=int(room))


class Probe:
    """A training loop that learns nothing, and measures how experience arrives."""

    def __init__(self, actors: int, seconds: float) -> None:
        self._actors, self._seconds = actors, seconds
        self.began_at = time.monotonic()
        self.figures: dict[str, float] = {}
        """Seconds until the first experience, until all are up and from the end until all are gone;
        memory in MB; restarts; and the rate."""

    def run(self, trainer: AsyncTrainer) -> None:
        """Measure, then end the run."""
        rows = trainer.proxy.actors.rows

        def stored() -> int:
            return trainer.proxy.ledger.balance().stored

        def ups() -> int:
            return sum(row.env_steps > 0 for row in rows().values())

        conditions: Mapping[str, Callable[[], bool]] = {
            "first_s": lambda: stored() > 0,
            "all_s": lambda: ups() >= self._actors,
        }
        for name, holds in conditions.items():
            while not holds():
                trainer.interrupter.raise_if_failed()
                assert time.monotonic() < self.began_at + _DEADLINE_S, f"{ups()} actors are up"
                time.sleep(0.05)
            self.figures[name] = time.monotonic() - self.began_at
        self.figures["rate"] = growth_rate(lambda: (stored(), 1), self._seconds)
        self.figures["pss_mb"] = sum(map(_pss, marked(os.environ[MARK]))) / 1e6
        self.figures["restarts"] = sum(row.restarts for row in rows().values())
        trainer.interrupter.stop("measured")


def measure(case: Case, seconds: float, address: str = "") -> dict[str, float]:
    """Run one arrangement and return its figures."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(_mark())
        proxy, transport = None, {}
        if case.delay_s is not None:
            proxy = stack.enter_context(closing(Proxy(delay_s=case.delay_s)))
            transport = {"advertise": f"127.0.0.1:{proxy.port}"}
        ray = RayConfig(address=address or "auto", hosts=case.hosts)
        config = replace(case.config(**transport), ray=ray)
        probe = Probe(case.actors, seconds)
        trainer = build_trainer(
            config,
            agent=DQNConfig(),
            env=case.make_env,
            strategy=probe,
            join_key=directory / "join.key" if case.where == "join" else None,
            start_hosts=on_ray if case.where == "ray" else None,
            recorder=None,
        )
        if proxy:
            endpoint = trainer.source._link.address.endpoint  # type: ignore[attr-defined]  # noqa: SLF001
            proxy.server_port = int(endpoint.rpartition(":")[2])
        hosts = case.hosts if case.where == "join" else 0
        room = case.actors // case.hosts
        arguments = [str(directory / "join.key"), json.dumps(asdict(case)), str(room)]
        for _ in range(hosts):
            host = subprocess.Popen([sys.executable, "-c", _HOST, *arguments])  # noqa: S603
            stack.callback(host.wait)
        trainer.train()
        ended_at = time.monotonic()
        while left := _left():
            assert time.monotonic() < ended_at + _DEADLINE_S, f"left: {left}"
            time.sleep(0.05)
        probe.figures["left_s"] = time.monotonic() - ended_at
    return probe.figures


@contextmanager
def _mark() -> Iterator[None]:
    """Mark the processes of a run; those of a cluster that runs already have another mark."""
    before = os.environ.get(MARK)
    os.environ[MARK] = before or secrets.token_hex(8)
    try:
        yield
    finally:
        if before is None:
            del os.environ[MARK]


def _left() -> list[str]:
    """Return which actors and hosts are still there."""
    others = [_words(one) for one in marked(os.environ[MARK]) if one.pid != os.getpid()]
    hosts = "benchmarks.speed.hosts import", "HostActor"
    return [w for w in others if w.startswith("asyncrl ") or any(host in w for host in hosts)]


def _words(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _pss(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


@contextmanager
def cluster() -> Iterator[str]:
    """Yield the address of a Ray cluster of four nodes on this machine."""
    os.environ[MARK] = secrets.token_hex(8)
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", _CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin
    assert process.stdout
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait()
        for rest in marked(os.environ.pop(MARK)):
            if rest.pid != os.getpid():
                with suppress(psutil.Error):
                    rest.kill()


def asleep_rows(args: argparse.Namespace, where: str, details: dict[str, Any]) -> list[Comparison]:
    """Compare 64 sleeping actors with 64 times one, in turns."""
    rounds: Rounds = {where: [], "64 times one actor": []}
    with cluster() if where == "ray" else nullcontext("") as address:
        for _ in range(args.repeats):
            case = Case(where=where, actors=64, hosts=4, asleep=True)
            many = measure(case, args.seconds, address)
            one = measure(Case(where="local", actors=1, asleep=True), args.seconds)
            rounds[where].append(many["rate"])
            rounds["64 times one actor"].append(64 * one["rate"])
            details.setdefault(f"asleep, {where}", []).append(many)
    place = "in one helper" if where == "local" else f"on 4 hosts ({where})"
    what = f"64 actors {place}, 10 ms asleep a step / 64 times one actor"
    return [compare(rounds, where, "64 times one actor", what=what, unit="env steps/s")]


def busy_rows(args: argparse.Namespace, details: dict[str, Any]) -> list[Comparison]:
    """Compare two computing actors on a joined host with two local ones, and with a delay."""
    cases = {
        "local over TCP": Case(where="local", actors=2, asleep=False),
        "on a host": Case(where="join", actors=2, asleep=False),
        "through a proxy": Case(where="join", actors=2, asleep=False, delay_s=0.0),
        "20 ms away": Case(where="join", actors=2, asleep=False, delay_s=0.02),
    }
    far = ("20 ms away", "through a proxy")
    short = {name: replace(cases[name], envs=8, length=2) for name in far}

    def rate(case: Case) -> float:
        return measure(case, args.seconds)["rate"]

    rows = []
    for what, of, pairs in (
        ("2 actors of 64 CartPoles", cases, [("on a host", "local over TCP"), far]),
        ("2 actors of 8 CartPoles, in segments of 2", short, [far]),
    ):
        rounds = in_turns({name: partial(rate, case) for name, case in of.items()}, args.repeats)
        details[what] = rounds
        rows += [
            compare(rounds, ours, other, unit="env steps/s", what=f"{what}, {ours} / {other}")
            for ours, other in pairs
        ]
    return rows


def ray_rows(args: argparse.Namespace, details: dict[str, Any]) -> list[Comparison]:
    """Compare two computing actors on a host that Ray has started with two local ones."""
    with cluster() as address:

        def rate(where: str) -> float:
            case = Case(where=where, actors=2, asleep=False)
            return measure(case, args.seconds, address)["rate"]

        sides = {"on Ray": partial(rate, "ray"), "local over TCP": partial(rate, "local")}
        rounds = in_turns(sides, args.repeats)
    what = "2 actors of 64 CartPoles, on Ray / local over TCP"
    details["busy, ray"] = rounds
    return [compare(rounds, *sides, unit="env steps/s", what=what)]


CASES = ("local", "join", "ray", "busy", "busy-ray")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the chosen cases."""
    parser = make_parser(__doc__, repeats=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["local", "join", "busy"])
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    args = parser.parse_args(argv)
    for name in args.cases:
        origin, details = provenance(), dict[str, Any]()
        match name:
            case "busy":
                rows = busy_rows(args, details)
            case "busy-ray":
                rows = ray_rows(args, details)
            case _:
                rows = asleep_rows(args, name, details)
        keep(args, f"hosts_{name}", __doc__, rows, origin=origin, details=details)


if __name__ == "__main__":
    main()
