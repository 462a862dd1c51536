"""What do many deaths cost a run? Actors are killed at random while it trains.

A calm stretch first, for comparison. Then one actor after another is killed with SIGKILL, at a
steady rate. At the end every slot must be filled, and the ledger must add up to the last
transition. Fails if it does not.

    python -m benchmarks.chaos.kill_storm --kills 1000 --seconds 600
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

from asyncrl.actor_manager import ActorManagerConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.async_config import AsyncConfig, EvaluationConfig
from asyncrl.async_trainer import AsyncTrainer, AsyncTrainerConfig
from asyncrl.envs.gym import EnvConfig
from asyncrl.rate_limiter import RateLimiterConfig
from asyncrl.restart_policy import RestartPolicyConfig
from asyncrl.train import build_async_trainer
from asyncrl.types import ActorId
from benchmarks.common import positive

__all__ = ["KillStorm", "storm"]

_BACK_S = 60.0
"""For all slots to be filled again after the last death."""


@dataclass(frozen=True, slots=True)
class _Death:
    """A slot that is empty, and what it had done."""

    killed_at: float
    env_steps: int


@dataclass(slots=True)
class KillStorm:
    """A training loop that kills actors; the times are those until a slot makes steps again."""

    kills: int
    seconds: float
    calm_s: float
    seed: int
    away_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    env_steps_per_s: dict[str, float] = field(default_factory=dict)
    rss_mib: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    _empty: dict[ActorId, _Death] = field(default_factory=dict)

    def run(self, trainer: AsyncTrainer) -> None:
        """Train in peace, then under the storm, then until everybody is back."""
        while not trainer.run_step():  # actors are about to start
            continue
        self._stretch("calm", trainer, [], self.calm_s)
        self._note_size()
        pauses = [self.seconds * (i + 1) / self.kills for i in range(self.kills)]
        self._stretch("storm", trainer, pauses, self.seconds)
        deadline = time.monotonic() + _BACK_S
        while self._empty and time.monotonic() < deadline:
            self._turn(trainer)
        self._note_size()

    def _stretch(
        self, name: str, trainer: AsyncTrainer, kill_after_s: list[float], seconds: float
    ) -> None:
        draw = random.Random(self.seed)  # noqa: S311  # no secret
        began, steps, due = time.monotonic(), trainer.proxy.ledger.env_steps, list(kill_after_s)
        while (passed := time.monotonic() - began) < seconds or due:
            if due and passed >= due[0] and self._kill_one(trainer, draw):
                due.pop(0)
            self._turn(trainer)
        self.env_steps_per_s[name] = (trainer.proxy.ledger.env_steps - steps) / passed

    def _turn(self, trainer: AsyncTrainer) -> None:
        began = time.monotonic()
        trainer.run_step()
        now = time.monotonic()
        self.gaps_s.append(now - began)
        rows = trainer.proxy.actors.rows()
        for actor_id, death in list(self._empty.items()):
            if rows[actor_id].env_steps > death.env_steps:
                self.away_s.append(now - death.killed_at)
                del self._empty[actor_id]

    def _kill_one(self, trainer: AsyncTrainer, draw: random.Random) -> bool:
        """Kill an actor if all slots are filled; it is known by its number when it is gone."""
        helpers = psutil.Process().children()
        actors = [actor.pid for helper in helpers for actor in helper.children()]
        if self._empty or not actors:
            return False
        os.kill(draw.choice(actors), signal.SIGKILL)
        self._await_restart(trainer)
        return True

    def _await_restart(self, trainer: AsyncTrainer) -> None:
        """Learn on until it is known whose slot was refilled."""
        killed_at = time.monotonic()
        before = {i: row.restarts for i, row in trainer.proxy.actors.rows().items()}
        while not self._empty and time.monotonic() < killed_at + _BACK_S:
            self._turn(trainer)
            for actor_id, row in trainer.proxy.actors.rows().items():
                if row.restarts > before.get(actor_id, 0):
                    self._empty[actor_id] = _Death(killed_at, row.env_steps)

    def _note_size(self) -> None:
        process = psutil.Process()
        self.rss_mib.append(process.memory_info().rss / 2**20)
        self.descriptors.append(process.num_fds())


def storm(loop: KillStorm, actors: int) -> Mapping[str, object]:
    """Run it, and return what it cost; raise if anything was not accounted for."""
    restart = RestartPolicyConfig(max_restarts=10 * loop.kills, backoff_max_s=0.2)
    config = AsyncConfig(
        actors=actors,
        supervision=ActorManagerConfig(restart=restart),
        limiter=RateLimiterConfig(samples_per_insert=4.0),
        trainer=AsyncTrainerConfig(batch_size=64),
        evaluation=EvaluationConfig(where="off"),
    )
    agent = DQNConfig(hidden=(32,), device="cpu", threads=1)
    make_env = EnvConfig(id="CartPole-v1", n_envs=4).build
    trainer = build_async_trainer(agent, make_env, config, strategy=loop)
    result = trainer.train()
    ledger = result.ledger
    restarts = sum(actor["restarts"] for actor in result.actors.values())
    accounted = ledger["stored"] + ledger["dropped"] + ledger["lost"]
    if ledger["in_flight"] or ledger["produced"] != accounted:
        raise SystemExit(f"the ledger does not add up: {ledger}")
    if restarts < loop.kills or len(loop.away_s) < loop.kills:
        raise SystemExit(
            f"{loop.kills} kills, {restarts} restarts, {len(loop.away_s)} of them seen to work"
        )
    away, gaps = sorted(loop.away_s), sorted(loop.gaps_s)
    return {
        "kills": loop.kills,
        "restarts": restarts,
        "transitions": ledger,
        "lost_per_kill": ledger["lost"] / loop.kills,
        "away_median_s": statistics.median(away),
        "away_p99_s": away[int(0.99 * len(away))],
        "longest_turn_of_the_learner_s": gaps[-1],
        "env_steps_per_s": loop.env_steps_per_s,
        "storm_vs_calm": loop.env_steps_per_s["storm"] / loop.env_steps_per_s["calm"],
        "learner_rss_mib": loop.rss_mib,
        "learner_descriptors": loop.descriptors,
    }


def main() -> None:
    """Measure, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=positive, default=100)
    parser.add_argument("--seconds", type=float, default=60.0, help="over which they are spread")
    parser.add_argument("--calm-seconds", type=float, default=10.0, help="before that")
    parser.add_argument("--actors", type=positive, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    loop = KillStorm(given.kills, given.seconds, given.calm_seconds, given.seed)
    json.dump(storm(loop, given.actors), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
