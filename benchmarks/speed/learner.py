"""How fast does the learner learn, compared with its limits?

The limits are the same update on one fixed batch, and the matrix products of that update alone.

Each optimisation step takes a batch out of a full replay of made-up experience; PPO,
whose queue has each batch once, takes the same one again. All agents have one torch thread, or as
many as `--threads` says. The settings that may make a step faster are compared with the step
without them. On a GPU, batches that are moved there are compared with those of a replay that keeps
them there, and the output says how far each setting's model is from that of plain updates from the
same batches.

    python -m benchmarks.speed.learner [--cases sac td3 crossq dqn dqn-256 dqn-images ppo]
    python -m benchmarks.speed.learner --threads 2
    python -m benchmarks.speed.learner --device cuda
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from asyncrl.actor.step_processor import OneStep
from asyncrl.agents.crossq import CrossQConfig
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.parts.updater import TRANSITION_COLUMNS, BatchMover
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.agents.td3 import TD3Config
from asyncrl.core.agent import Agent, PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.replay_buffer import ReplayBuffer, ReplayBufferConfig
from asyncrl.core.segment import make_schema
from asyncrl.core.types import Params
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
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
    positive,
    provenance,
)
from benchmarks.peers.interface import REPLAY_ROWS, SIZES, Sizes

UNIT = "opt steps/s"
SAMPLED, FIXED = "from the replay", "one fixed batch"
COMPILED, PRODUCTS = "compiled", "its matrix products alone"
MOVED, ON_DEVICE = "sampled and moved", "replay on the device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One algorithm at one size."""

    words: str
    agent: SACConfig | TD3Config | CrossQConfig | DQNConfig | PPOConfig
    sizes: Sizes
    image: tuple[int, ...] = ()
    """Shape of an observation of `sizes.obs` bytes; empty for float observations."""

    replay_rows: int = REPLAY_ROWS
    """Transitions in the replay that updates are measured from."""

    @property
    def spec(self) -> EnvSpec:
        """Return observations and actions of the sizes asked for."""
        sizes = self.sizes
        discrete = isinstance(self.agent, DQNConfig | PPOConfig)
        return EnvSpec(
            _image(self.image) if self.image else _box(sizes.obs),
            DiscreteSpec(sizes.actions) if discrete else _box(sizes.actions),
        )


_SAC, _DQN = SIZES["updates-sac"], SIZES["updates-dqn"]

_FRAMES = (4, 84, 84)
"""Observations of Atari games: the newest frames, grayscale."""

PEERS_DQN = DQNConfig(
    hidden=_DQN.hidden,
    double=False,
    loss="huber",
    tau=0.0,
    target_interval_opt_steps=2500,
    device="cpu",
    threads=1,
)
"""The peers' DQN: the target network both chooses and evaluates, and is copied at intervals."""

CASES: Mapping[str, Case] = {
    **{
        name.lower(): Case(
            words=f"{name} 256x256, batches of 256",
            agent=config(hidden=_SAC.hidden, device="cpu", threads=1),
            sizes=_SAC,
        )
        for name, config in {"SAC": SACConfig, "TD3": TD3Config, "CrossQ": CrossQConfig}.items()
    },
    "dqn": Case(words="DQN 64x64, batches of 128", agent=PEERS_DQN, sizes=_DQN),
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
    "ppo": Case(
        words="PPO 64x64, 10 epochs of 4 minibatches of 512",
        agent=PPOConfig(device="cpu", threads=1),
        sizes=replace(_DQN, batch=2048),
    ),
}
VARIANTS: Mapping[str, dict[str, str | bool]] = {
    "bfloat16": {"precision": "bfloat16"},
    COMPILED: {"accelerate": "compile"},
    "normalized observations": {"normalize_obs": True},
    "graphs": {"accelerate": "graphs"},
    "graphs, bfloat16": {"precision": "bfloat16", "accelerate": "graphs"},
}
"""Name -> settings that differ from the plain ones; graphs need a GPU."""


def full_replay(case: Case, device: str = "host") -> ReplayBuffer:
    """Return a replay full of made-up experience, in the host's memory or on a device."""
    columns = OneStep().columns(case.spec, case.agent.extra_columns(case.spec))
    schema = make_schema(columns, length=64, lookahead=1)
    config: ReplayBufferConfig = UniformReplayConfig(capacity=case.replay_rows, device=device)
    if isinstance(case.agent, PPOConfig):
        config = TrajectoryQueueConfig(capacity=case.replay_rows)
    return filled(config, schema, synthetic_experience(schema, case.spec, 64))


def make_agent(case: Case, variant: str, device: str) -> Agent:
    """Return a case's agent with the settings of a variant; the empty name is the plain one."""
    changes: dict[str, Any] = {"accelerate": "off", **VARIANTS.get(variant, {})}
    config = replace(case.agent, device=device, **changes)
    return config.build(case.spec, PolicyContext(seed=0))


def measures_of(case: Case, args: argparse.Namespace) -> dict[str, Callable[[], float]]:
    """Return the quantities to measure of a case, by name."""
    replay, size = full_replay(case), case.sizes.batch
    plain = Turns(make_agent(case, "", args.device), replay, size)

    def rate(turn: Callable[[], int], settle: Callable[[], None]) -> Callable[[], float]:
        warm_up_seconds = args.seconds / 4
        work = Repeating(turn, warm_up_seconds=warm_up_seconds, settle=settle)
        return partial(work.rate, args.seconds)

    measures = {} if replay.once else {SAMPLED: rate(plain.from_replay, plain.settle)}
    measures |= {
        FIXED: rate(plain.from_one_batch, plain.settle),
        PRODUCTS: rate(plain.products_alone, plain.settle),
    }
    for name in args.variants:
        if replay.once and "graphs" in name:
            continue  # minibatches vary
        turns = Turns(make_agent(case, name, args.device), replay, size)
        turn = turns.from_one_batch if replay.once else turns.from_replay
        measures[name] = rate(turn, turns.settle)
    if args.device != "cpu" and not replay.once:
        for name, source in ((MOVED, replay), (ON_DEVICE, full_replay(case, args.device))):
            arrive = partial(_arrive, BatchMover(torch.device(args.device), TRANSITION_COLUMNS))
            measures[name] = rate(partial(arrive, source, size), torch.cuda.synchronize)
    return measures


def compare_all(case: Case, rounds: Rounds, device: str = "cpu") -> list[Comparison]:
    """Compare steps from the replay with limits, and variants with them."""
    against = [(SAMPLED, FIXED), (FIXED, PRODUCTS), (COMPILED, PRODUCTS)]
    against += [(name, SAMPLED if SAMPLED in rounds else FIXED) for name in VARIANTS]
    words = case.words if device == "cpu" else f"{device}, {case.words}"
    found = [
        compare(rounds, ours, other, what=f"{words}: {ours} / {other}", unit=UNIT)
        for ours, other in against
        if {ours, other} <= set(rounds)
    ]
    if MOVED in rounds:
        what = f"{words}: {MOVED} / {ON_DEVICE}"
        found.append(compare(rounds, MOVED, ON_DEVICE, what=what, unit="batches/s"))
    return found


def measure_parity(case: Case, variants: Sequence[str], device: str, opt_steps: int) -> Rounds:
    """Return how far each variant's model is from the plain one's after the same batches."""
    replay, apart = full_replay(case), {}
    for variant in variants:
        if "normalize_obs" in VARIANTS[variant]:
            continue  # another network
        plain, other = (make_agent(case, name, device) for name in ("", variant))
        for _ in range(opt_steps):
            batch = replay.sample(case.sizes.batch)
            plain.opt(batch)
            other.opt(batch)
        params = plain.model_info().params, other.model_info().params
        apart[variant] = [largest_difference(*params)]
    return apart


def largest_difference(first: Params, second: Params) -> float:
    """Return the largest difference of two models, relative to each array's largest number."""
    if set(first) != set(second):
        raise ValueError(f"the models differ in {sorted(set(first) ^ set(second))}")
    return max(
        float(np.abs(first[name] - second[name]).max() / max(np.abs(first[name]).max(), 1e-30))
        for name in first
    )


def _arrive(move: BatchMover, replay: ReplayBuffer, batch_size: int) -> int:
    move(replay.sample(batch_size))
    return 1


def _box(n: int) -> BoxSpec:
    return BoxSpec((n,), "float32", np.full(n, -1, np.float32), np.full(n, 1, np.float32))


def _image(shape: tuple[int, ...]) -> BoxSpec:
    return BoxSpec(shape, "uint8", np.zeros(shape, np.uint8), np.full(shape, 255, np.uint8))


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__, repeats=5)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS))
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N")
    parser.add_argument("--threads", type=positive, default=1, help="torch threads")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--opt-steps", type=int, default=200, help="before models are compared")
    args = parser.parse_args(argv)
    if args.variants is None:
        args.variants = [v for v in VARIANTS if args.device != "cpu" or "graphs" not in v]
    return args


def main() -> None:
    """Measure all in turns, case by case."""
    args = arguments()
    if args.device != "cpu" and not torch.cuda.is_available():
        sys.stdout.write(f"torch {torch.__version__} sees no GPU here, so nothing was measured.\n")
        return
    torch.set_num_threads(args.threads)
    device = "" if args.device == "cpu" else "gpu_"
    threads = "" if args.threads == 1 else f"_{args.threads}_threads"
    for name in args.cases:
        case = CASES[name]
        if threads:
            case = replace(case, words=f"{case.words}, {args.threads} threads")
        note(case.words)
        origin = provenance()
        rounds = in_turns(measures_of(case, args), args.repeats)
        comparisons = compare_all(case, rounds, args.device)
        details = {name: rounds}
        if device and not isinstance(case.agent, PPOConfig):
            key = f"{name}: largest relative difference from plain updates"
            details[key] = measure_parity(CASES[name], args.variants, args.device, args.opt_steps)
        result = f"learner_{device}{name}{threads}"
        keep(args, result, __doc__, comparisons, origin=origin, details=details)


if __name__ == "__main__":
    main()
