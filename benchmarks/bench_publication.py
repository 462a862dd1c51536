"""How soon do actors act on a new model? From the call that publishes it, a busy learner's, on.

Two actors step CartPoles with a network of about 1 MB, and the learner optimises without a pause.
Each actor notes when it first acts with a version; for each version the slower actor counts. The
limit beside it is one turn of an actor: no actor can notice a model in the middle of one.

    python -m benchmarks.bench_publication
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.agent import Act, Agent, Policy, PolicyContext, PolicyWrapper
from asyncrl.core.env import EnvSpec
from asyncrl.core.messages import ModelInfo
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.types import Array
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.async_trainer import AsyncTrainer, AsyncTrainerConfig
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.training.asynchronous import build_async_trainer
from asyncrl.training.config import AsyncConfig, EvaluationConfig
from benchmarks.common import (
    Rounds,
    compare,
    make_parser,
    note,
    positive,
    provenance,
    save,
    settings_of,
    show,
)


class Noting(PolicyWrapper):
    """Writes down when it first acts with each version."""

    def __init__(self, policy: Policy, path: Path) -> None:
        super().__init__(policy)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._version = -1
        self._acted_with = -1
        self._turns = 0
        self._began = time.monotonic()

    def sync_model(self, info: ModelInfo) -> None:
        """Take a snapshot, and remember which."""
        super().sync_model(info)
        self._version = int(info.version)

    def act(self, obs: Array) -> Act:
        """Act; the first time with a version, note it, and how long a turn has taken so far."""
        if self._version != self._acted_with:
            self._acted_with = self._version
            now = time.monotonic()
            turn_s = (now - self._began) / max(self._turns, 1)
            self._file.write(f"{self._version} {now!r} {turn_s!r}\n")
        self._turns += 1
        return super().act(obs)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotingConfig:
    """An agent whose actors note their models."""

    agent: DQNConfig
    directory: Path

    def build(self, spec: EnvSpec, context: PolicyContext) -> Agent:
        """Make the learner's agent, unchanged."""
        return self.agent.build(spec, context)

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> Policy:
        """Make an actor's policy."""
        policy = self.agent.build_policy(spec, context)
        return Noting(policy, self.directory / str(context.actor_id))

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Return the agent's."""
        return self.agent.extra_columns(spec)


class Publishing:
    """A training loop that optimises without a pause and publishes at intervals."""

    def __init__(self, models: int, interval_s: float) -> None:
        self._models = models
        self._interval_s = interval_s
        self.published_at: dict[int, float] = {}
        self.model_bytes = 0

    def run(self, trainer: AsyncTrainer) -> None:
        """Publish so many models, one after another."""
        params = trainer.agent.model_info().params
        self.model_bytes = sum(array.nbytes for array in params.values())
        due = time.monotonic() + self._interval_s
        while len(self.published_at) < self._models and not trainer.should_stop:
            if not trainer.run_step() or time.monotonic() < due:
                continue
            due += self._interval_s
            began = time.monotonic()
            trainer.publish()
            self.published_at[trainer.books.counts.opt_steps] = began
        trainer.interrupter.stop("measured")


def measure(*, models: int, interval_s: float, hidden: tuple[int, ...], envs: int) -> Rounds:
    """Return seconds until both actors acted on each model, and those of an actor's turn."""
    with tempfile.TemporaryDirectory() as directory:
        agent = NotingConfig(agent=DQNConfig(hidden=hidden), directory=Path(directory))
        config = AsyncConfig(
            actors=2,
            limiter=RateLimiterConfig(samples_per_insert=0.0),
            trainer=AsyncTrainerConfig(sync_interval_opt_steps=10**9),
            evaluation=EvaluationConfig(where="off"),
        )
        loop = Publishing(models, interval_s)
        make = EnvConfig(id="CartPole-v1", n_envs=envs).build
        build_async_trainer(agent, make, config, strategy=loop).train()
        note(f"{len(loop.published_at)} models of {loop.model_bytes:,} bytes")
        acted: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for path in Path(directory).iterdir():
            for line in path.read_text(encoding="utf-8").splitlines():
                number, now, turn_s = line.split()
                acted[int(number)].append((float(now), float(turn_s)))
    rounds: Rounds = {"acted on": [], "turn": []}
    for version, began in loop.published_at.items():
        if len(acted[version]) == 2:  # the last ones may come after the end
            rounds["acted on"].append(max(now for now, _ in acted[version]) - began)
            rounds["turn"].append(max(turn_s for _, turn_s in acted[version]))
    return rounds


def main() -> None:
    """Measure one run."""
    parser = make_parser(__doc__, repeats=0)
    parser.add_argument("--models", type=positive, default=100)
    parser.add_argument("--interval-s", type=float, default=0.1)
    parser.add_argument("--envs-per-actor", type=positive, default=8)
    parser.add_argument("--hidden", type=positive, nargs="*", default=[512, 480])
    args = parser.parse_args()
    origin = provenance()
    take = partial(measure, models=args.models, interval_s=args.interval_s)
    rounds = take(hidden=tuple(args.hidden), envs=args.envs_per_actor)
    note(f"median {1000 * statistics.median(rounds['acted on']):.1f} ms")
    what = "1 MB of parameters: published until both actors act on it / an actor's turn"
    path = save(
        args.results,
        "publication",
        question=__doc__,
        settings=settings_of(args),
        comparisons=[compare(rounds, "acted on", "turn", what=what, unit="s", paired=False)],
        origin=origin,
        details={"seconds": rounds},
    )
    show(path)


if __name__ == "__main__":
    main()
