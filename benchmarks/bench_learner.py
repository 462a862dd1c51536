"""How fast does the learner learn? Against one fixed batch, and against Stable-Baselines3.

Each optimisation step takes a batch out of a full replay of made-up experience. All agents have one
torch thread. The settings that may make a step faster are compared with the step without them.

    python -m benchmarks.bench_learner [--cases sac dqn dqn-256 dqn-images]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from asyncrl.actor.step_processor import OneStep
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.replay_buffer import ReplayBuffer, in_batches
from asyncrl.core.segment import make_schema
from asyncrl.learner.async_trainer import AsyncTrainerConfig
from asyncrl.replay.uniform import UniformReplayConfig
from benchmarks.bench_learner_under_load import fill
from benchmarks.common import (
    PEER_VENV,
    Comparison,
    Rounds,
    compare,
    in_turns,
    make_parser,
    note,
    peer_python,
    provenance,
    run_peer,
    save,
    settings_of,
    show,
)
from benchmarks.peers.interface import REPLAY_ROWS, SIZES, Sizes

UNIT = "opt steps/s"
SAMPLED, FIXED, PEER = "from the replay", "one fixed batch", "Stable-Baselines3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One algorithm at one size."""

    words: str
    agent: SACConfig | DQNConfig
    sizes: Sizes
    stage: str = ""
    """Of `peers/sb3.py` that measures the same; empty if none does."""

    image: tuple[int, ...] = ()
    """Shape of `sizes.obs` bytes to observe; numbers are observed where it is empty."""

    replay_rows: int = REPLAY_ROWS
    """In the replay that updates are measured from."""

    @property
    def spec(self) -> EnvSpec:
        """Return observations and actions of the sizes asked for."""
        sizes = self.sizes
        discrete = isinstance(self.agent, DQNConfig)
        return EnvSpec(
            _image(self.image) if self.image else _box(sizes.obs),
            DiscreteSpec(sizes.actions) if discrete else _box(sizes.actions),
        )


_SAC, _DQN = SIZES["updates-sac"], SIZES["updates-dqn"]

_FRAMES = (4, 84, 84)
"""What Atari's games are observed as: the newest frames, in grey."""

PEERS_DQN = DQNConfig(
    hidden=_DQN.hidden,
    double=False,
    loss="huber",
    tau=0.0,
    target_interval_opt_steps=2500,
    device="cpu",
    threads=1,
)
"""What the peers' DQN computes: one network chooses and rates, and is copied now and then."""

CASES: Mapping[str, Case] = {
    "sac": Case(
        words="SAC 256x256, batches of 256",
        agent=SACConfig(hidden=_SAC.hidden, device="cpu", threads=1),
        sizes=_SAC,
        stage="updates-sac",
    ),
    "dqn": Case(
        words="DQN 64x64, batches of 128",
        agent=PEERS_DQN,
        sizes=_DQN,
        stage="updates-dqn",
    ),
    "dqn-256": Case(
        words="DQN 256x256, batches of 128",
        agent=DQNConfig(hidden=(256, 256), device="cpu", threads=1),
        sizes=_DQN,
    ),
    "dqn-images": Case(
        words="DQN on 4x84x84 bytes, 512 units behind convolutions, batches of 32",
        agent=DQNConfig(hidden=(512,), device="cpu", threads=1),
        sizes=Sizes(obs=math.prod(_FRAMES), actions=6, hidden=(512,), batch=32),
        image=_FRAMES,
        replay_rows=5_000,
    ),
}
VARIANTS: Mapping[str, dict[str, str | bool]] = {
    "bfloat16": {"precision": "bfloat16"},
    "compiled": {"accelerate": "compile"},
    "normalized observations": {"normalize_obs": True},
}


def full_replay(case: Case, device: str = "host") -> ReplayBuffer:
    """Return a replay full of made-up experience, in the host's memory or on a device."""
    schema = make_schema(OneStep().columns(case.spec, ()), length=64, lookahead=1)
    config = UniformReplayConfig(capacity=case.replay_rows, device=device)
    replay = config.build(schema, seed=0)
    fill(replay, schema, case.spec)
    return replay


def measures_of(
    case: Case, seconds: float, variants: Sequence[str], python: Path | None
) -> dict[str, Callable[[], float]]:
    """Return what is measured of a case, by name; the peer only where it is installed."""
    replay = full_replay(case)
    batch = replay.sample(case.sizes.batch)
    at_once = AsyncTrainerConfig().draw_at_once(batch)

    def rate_of(config: SACConfig | DQNConfig, *, fixed: bool = False) -> Callable[[], float]:
        agent = config.build(case.spec, PolicyContext(seed=0))

        def from_replay() -> None:
            for part in in_batches(replay.sample(at_once * case.sizes.batch), case.sizes.batch):
                agent.opt(part)

        def from_one_batch() -> None:
            for _ in range(at_once):
                agent.opt(batch)

        turn = from_one_batch if fixed else from_replay
        return lambda: at_once * _rate(turn, seconds)

    measures = {SAMPLED: rate_of(case.agent), FIXED: rate_of(case.agent, fixed=True)}
    if python is not None and case.stage:
        request = [case.stage, "--threads", 1, "--seconds", seconds]
        measures[PEER] = lambda: float(run_peer(python, "sb3", request)["value"])
    return measures | {
        name: rate_of(replace(case.agent, **VARIANTS[name]))  # type: ignore[arg-type]  # by name
        for name in variants
    }


def compare_all(case: Case, rounds: Rounds) -> list[Comparison]:
    """Compare steps from the replay with limits and peers, and variants with them."""
    against = [(SAMPLED, FIXED), (SAMPLED, PEER), *((name, SAMPLED) for name in VARIANTS)]
    return [
        compare(rounds, ours, other, what=f"{case.words}: {ours} / {other}", unit=UNIT)
        for ours, other in against
        if {ours, other} <= set(rounds)
    ]


def _box(n: int) -> BoxSpec:
    return BoxSpec((n,), "float32", np.full(n, -1, np.float32), np.full(n, 1, np.float32))


def _image(shape: tuple[int, ...]) -> BoxSpec:
    return BoxSpec(shape, "uint8", np.zeros(shape, np.uint8), np.full(shape, 255, np.uint8))


def _rate(turn: Callable[[], None], seconds: float) -> float:
    turn()  # compiles what is to be compiled
    ready = time.perf_counter() + seconds / 4
    while time.perf_counter() < ready:
        turn()
    began, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        turn()
        count += 1
    return count / elapsed


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__, repeats=5)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    return parser.parse_args()


def main() -> None:
    """Measure all in turns, case by case."""
    args = arguments()
    torch.set_num_threads(1)
    origin, python = provenance(), peer_python(PEER_VENV)
    comparisons: list[Comparison] = []
    details: dict[str, Rounds] = {}
    for name in args.cases:
        note(CASES[name].words)
        measures = measures_of(CASES[name], args.seconds, args.variants, python)
        rounds = in_turns(measures, args.repeats)
        comparisons += compare_all(CASES[name], rounds)
        details[name] = rounds
    path = save(
        args.results,
        "learner",
        question=__doc__,
        settings=settings_of(args),
        comparisons=comparisons,
        origin=origin,
        details=details,
    )
    show(path)


if __name__ == "__main__":
    main()
