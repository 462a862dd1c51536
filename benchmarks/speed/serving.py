"""How much faster do actors act when a server computes large networks in batches for all of them?

    python -m benchmarks.speed.serving [--actors 16] [--repeats 3] [--seconds 6] [--widths 1024 ...]

Acting only: nothing is learned. Networks are computed in the server and in actors, in turns; the
result includes an actor's memory. `round_trip` is the time of a request of two actors with one row
each, and of the network alone; its policy has 64x64 units.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import psutil
import torch

from asyncrl.actor.acting_model import ServedModel
from asyncrl.actor.batcher import Batcher, ServingConfig
from asyncrl.actor.inference_server import InferenceServer
from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.inference import InferenceAddress, fastest_inference
from asyncrl.core.messages import ModelInfo, Peer
from asyncrl.core.segment import ColumnSpec, make_schema
from asyncrl.core.types import ActorId, ModelVersion
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.learner.stop_conditions import MaxSeconds
from asyncrl.training.common_config import EvaluationConfig
from asyncrl.training.run import build_trainer
from asyncrl.training.run_config import RunConfig
from asyncrl.transport.zeromq import ZmqTransport, ZmqTransportConfig
from benchmarks.common import compare, in_turns, keep, make_parser, provenance

Where = Literal["actor", "learner", "server"]
_LONGEST_S = 90.0
_REQUESTS = 3000
_BOX = BoxSpec((4,), "float32", np.full(4, -9, "f4"), np.full(4, 9, "f4"))
_SPEC = EnvSpec(_BOX, DiscreteSpec(2))
_SMALL = DQNConfig(hidden=(64, 64), device="cpu")


class Watch:
    """Counts environment steps for a while, once all actors have begun."""

    def __init__(self, actors: int, seconds: float) -> None:
        self._actors, self._seconds = actors, seconds
        self.steps_per_s = 0.0
        self.actor_mb = 0.0

    def run(self, trainer: AsyncTrainer) -> None:
        """Wait for all actors, then measure."""
        while not trainer.should_stop and len(self._begun(trainer)) < self._actors:
            self._pass(trainer, 0.1)
        self._pass(trainer, 1.0)
        before, at = trainer.env_steps, time.monotonic()
        self._pass(trainer, self._seconds)
        self.steps_per_s = (trainer.env_steps - before) / (time.monotonic() - at)
        self.actor_mb = _actor_mb()
        trainer.interrupter.stop("measured")

    @staticmethod
    def _begun(trainer: AsyncTrainer) -> list[int]:
        rows = trainer.proxy.actors.rows().values()
        return [row.env_steps for row in rows if row.env_steps]

    @staticmethod
    def _pass(trainer: AsyncTrainer, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not trainer.should_stop and time.monotonic() < until:
            trainer.interrupter.wait(0.05)
            trainer.run_services()


def _actor_mb() -> float:
    """Return the private memory of an actor, on average."""
    processes = psutil.Process().children(recursive=True)
    own = [
        p.memory_full_info().uss / 1e6 for p in processes if p.name().startswith("asyncrl-actor")
    ]
    return statistics.fmean(own) if own else 0.0


def acting(where: Where, actors: int, seconds: float, widths: tuple[int, ...]) -> dict[str, Any]:
    """Return environment steps per second of all actors, one environment each."""
    watch = Watch(actors, seconds)
    config = RunConfig(
        actors=actors,
        inference=where,
        limiter=RateLimiterConfig(samples_per_insert=0.0, min_size=1000),
        evaluate=EvaluationConfig(where="off"),
    )
    agent = DQNConfig(hidden=widths, device="cpu")
    make_env = EnvConfig(id="CartPole-v1", n_envs=1).build
    stop = MaxSeconds(_LONGEST_S)
    build_trainer(
        config, agent=agent, env=make_env, strategy=watch, stop=stop, recorder=None
    ).train()
    return {"steps_per_s": watch.steps_per_s, "actor_mb": watch.actor_mb}


class OneModel:
    """A learner's link that publishes one model only, and the end of the benchmark."""

    def latest_model(self, topic: str, newer_than: int, timeout_s: float) -> ModelInfo | None:
        """Return the parameters of the server's own policy once."""
        if newer_than >= 0:
            return None
        info = _SMALL.build_policy(_SPEC, PolicyContext(seed=0)).model_info()
        return ModelInfo(version=ModelVersion(1), params=info.params)


class Idle:
    """There is no supervisor."""

    def turn(self, produced: int) -> None:
        """Ignore it."""

    def waiting(self, waiting: bool) -> None:
        """Ignore it."""

    def finishing(self) -> bool:
        """Return False."""
        return False


def _serve(address: InferenceAddress, stop: Event) -> None:
    torch.set_num_threads(1)
    policy: Any = _SMALL.build_policy(_SPEC, PolicyContext(seed=0))
    policy.inference = fastest_inference(policy, one_thread=False)
    learner: Any = OneModel()
    listener = address.listen()
    server = InferenceServer(policy, learner, listener, Batcher(ServingConfig()))
    while not stop.is_set():
        server.run_turn(Idle())
    listener.close()


def _asks(address: InferenceAddress, actor_id: int, times: Queue[list[float]]) -> None:
    policy: Any = None
    peer = Peer(actor_id=ActorId(actor_id), incarnation=0)
    client = address.connect()
    model = ServedModel(policy, client, peer, progress=Idle(), finishing=lambda: False)
    obs = np.zeros((1, 4), np.float32)
    took = []
    for _ in range(_REQUESTS):
        begun = time.perf_counter()
        model({"obs": obs})
        took.append(time.perf_counter() - begun)
    times.put(took[_REQUESTS // 3 :])
    client.close()


def round_trip() -> dict[str, float]:
    """Return percentiles of a round trip of two actors, and the network's own time, in us."""
    torch.set_num_threads(1)
    spawn = multiprocessing.get_context("spawn")
    times, stop = spawn.Queue(), spawn.Event()
    with tempfile.TemporaryDirectory() as directory:
        schema = make_schema(
            [ColumnSpec("obs", "float32", (4,)), ColumnSpec("flags", "uint8")],
            length=2,
            lookahead=0,
        )
        transport = ZmqTransport.ipc(Path(directory), schema=schema, config=ZmqTransportConfig())
        address = transport.inference(Path(directory))
        server = spawn.Process(target=_serve, args=(address, stop))
        actors = [spawn.Process(target=_asks, args=(address, i, times)) for i in range(2)]
        for process in (server, *actors):
            process.start()
        took = np.concatenate([times.get(timeout=60.0) for _ in actors]) * 1e6
        stop.set()
        for process in (server, *actors):
            process.join(10.0)
    policy: Any = _SMALL.build_policy(_SPEC, PolicyContext(seed=0))
    infer = partial(
        fastest_inference(policy, one_thread=False), {"obs": np.zeros((2, 4), np.float32)}
    )
    begun = time.perf_counter()
    for _ in range(1000):
        infer()
    own = (time.perf_counter() - begun) * 1e3
    middle, high = np.percentile(took, [50, 90])
    return {"p50_us": float(middle), "p90_us": float(high), "network_us": own}


def main() -> None:
    """Measure round trips, then steps in turns; keep both."""
    parser = make_parser(__doc__)
    parser.add_argument("--actors", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--widths", type=int, nargs="+", default=[1024] * 4)
    args, origin = parser.parse_args(), provenance()
    trip, actor_mb = round_trip(), dict[str, float]()

    def measure(where: Where) -> float:
        found = acting(where, args.actors, args.seconds, tuple(args.widths))
        actor_mb[where] = found["actor_mb"]
        steps_per_s: float = found["steps_per_s"]
        return steps_per_s

    wheres: tuple[Where, ...] = get_args(Where)
    rounds = in_turns({where: partial(measure, where) for where in wheres}, args.repeats)
    of = f"{args.actors} actors of one CartPole, {'-'.join(map(str, args.widths))} units"
    comparisons = [
        compare(
            rounds,
            where,
            "actor",
            what=f"networks in the {where} or in actors, {of}",
            unit="env steps/s",
        )
        for where in ("learner", "server")
    ]
    details = {"round_trip": trip, "steps_per_s": rounds, "actor_mb": actor_mb}
    keep(args, "serving", __doc__, comparisons, origin=origin, details=details)


if __name__ == "__main__":
    main()
