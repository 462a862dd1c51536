"""Is asyncrl's score no worse than a peer's after as many environment steps, and is it sooner?

Both sides train for the same number of environment steps, without evaluations, with settings that
were tuned for about so many: the peers with those of Stable-Baselines3's zoo, asyncrl with its
preset and what stands here. The last model is scored on the same episodes.

    python -m benchmarks.learning.duels ALGORITHM/TASK --seed 0
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from asyncrl.agents.parts.exploration import EpsilonLadder
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.training.asynchronous import train_async
from asyncrl.training.config import EvaluationConfig
from asyncrl.training.run_config import RunConfig
from benchmarks.common import ROOT
from benchmarks.learning.tasks import TASKS, Case, missing
from benchmarks.learning.training import evaluated

OURS = "asyncrl"
PEERS = ("sb3", "tianshou")


@dataclass(frozen=True, slots=True, kw_only=True)
class Duel:
    """A case, trained by several frameworks for the same number of environment steps."""

    algorithm: str
    task: str
    env_steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of asyncrl, where they are not the preset's: dotted names -> values."""

    @property
    def name(self) -> str:
        """Return what the command line calls it."""
        return f"{self.algorithm}/{self.task}"

    def config(self, seed: int) -> RunConfig:
        """Return asyncrl's settings."""
        case = Case(algorithm=self.algorithm, task=self.task, settings=self.settings)
        return replace(
            case.config(seed),
            max_env_steps=self.env_steps,
            stop_at_return=None,
            evaluation=EvaluationConfig(where="off"),
        )


DUELS: tuple[Duel, ...] = (
    Duel(
        algorithm="dqn",
        task="cartpole",
        env_steps=50_000,
        settings={  # the zoo's, but for n_step 5, double, environments
            "agent.hidden": (256, 256),
            "agent.learning_rate": 2.3e-3,
            "agent.loss": "huber",
            "agent.tau": 0.0,
            "agent.target_interval_opt_steps": 128,
            "agent.exploration": EpsilonLadder(base=0.04, alpha=0.0, decay_env_steps=8000),
            "trainer.batch_size": 64,
            "trainer.sync_interval_opt_steps": 16,
            "limiter.samples_per_insert": 32.0,
        },
    ),
    Duel(algorithm="ppo", task="cartpole", env_steps=100_000),
    Duel(algorithm="sac", task="pendulum", env_steps=20_000),
    Duel(algorithm="td3", task="pendulum", env_steps=20_000),
)
"""The steps are those that the zoo's settings are for. DQN's preset is for the shortest time, and
learns from each step an eighth as often."""


def absent(duel: Duel, side: str) -> str:
    """Say why a side cannot take part here; nothing if it can."""
    if side == OURS:
        return missing(Case(algorithm=duel.algorithm, task=duel.task))
    return "" if (ROOT / ".peers" / side / "bin" / "python").exists() else f"no .peers/{side}"


def fight(duel: Duel, seed: int) -> dict[str, Any]:
    """Train asyncrl's side, and return what the peers' scripts print of theirs."""
    config = duel.config(seed)
    with tempfile.TemporaryDirectory() as directory:
        result = train_async(
            config.agent,
            config.env_config().build,
            config,
            stop=config.stop_condition(),
            checkpoint_dir=Path(directory),
        )
        last = Checkpointer(Path(directory)).load_latest()
    score, record = evaluated(config, last, TASKS[duel.task].episodes)
    return {
        "score": score,
        "score_std": record["eval/return_std"],
        "wall_s": result.wall_s,
        "env_steps": result.env_steps,
        "opt_steps": result.opt_steps,
        "stop_reason": result.stop_reason,
    }


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("duel", choices=[duel.name for duel in DUELS])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    (duel,) = (duel for duel in DUELS if duel.name == args.duel)
    print(json.dumps(fight(duel, args.seed), allow_nan=False), flush=True)


if __name__ == "__main__":
    main()
