"""What does a GPU bring to the learner, and does it compute the same there?

Each optimisation step takes a batch out of a full replay in the host's memory, or one fixed batch,
and is run operation after operation, compiled, recorded, and in bfloat16. Beside it: batches whose
observations are moved there against those of a replay that keeps them there, how far recorded
updates come to differ from others, and whole runs with actors. Without a GPU it says so, and
measures nothing.

    python -m benchmarks.bench_gpu [--cases sac dqn] [--actors 2]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.parts.updates import TRANSITION_COLUMNS, BatchMover
from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import Agent, PolicyContext
from asyncrl.core.replay_buffer import ReplayBuffer, in_batches
from asyncrl.core.types import Params
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.async_trainer import AsyncTrainerConfig
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.training.config import AsyncConfig, EvaluationConfig
from benchmarks.bench_learner import CASES, Case, full_replay
from benchmarks.bench_learner_under_load import Case as Run
from benchmarks.bench_learner_under_load import in_own_process, measure_loaded
from benchmarks.common import (
    Comparison,
    Rounds,
    compare,
    in_turns,
    make_parser,
    note,
    provenance,
    save,
    settings_of,
    show,
)

Config = SACConfig | DQNConfig

FIXED = ", one fixed batch"
VARIANTS: Mapping[str, dict[str, str]] = {
    "eager": {},
    "compiled": {"accelerate": "compile"},
    "graphs": {"accelerate": "graphs"},
    "eager, bfloat16": {"precision": "bfloat16"},
    "graphs, bfloat16": {"precision": "bfloat16", "accelerate": "graphs"},
}
MOVING = ("sampled and moved", "replay on the device")
ENVS = {"sac": "Pendulum-v1", "dqn": "CartPole-v1", "dqn-256": "CartPole-v1"}


def on(device: str, config: Config, variant: str) -> Config:
    """Return the settings of a variant on a device."""
    return replace(config, device=device, **VARIANTS[variant])  # type: ignore[arg-type]  # by name


def updates_of(
    case: Case, replay: ReplayBuffer, variants: Sequence[str], device: str, seconds: float
) -> dict[str, Callable[[], float]]:
    """Return what measures optimisation steps a second, by variant and source of batches."""
    batch = replay.sample(case.sizes.batch)
    at_once = AsyncTrainerConfig().draw_at_once(batch)

    def from_replay(agent: Agent) -> int:
        for part in in_batches(replay.sample(at_once * case.sizes.batch), case.sizes.batch):
            agent.opt(part)
        return at_once

    def from_one_batch(agent: Agent) -> int:
        agent.opt(batch)
        return 1

    measures: dict[str, Callable[[], float]] = {}
    for variant in variants:
        agent = on(device, case.agent, variant).build(case.spec, PolicyContext(seed=0))
        measures[variant] = partial(_rate, partial(from_replay, agent), device, seconds)
        measures[variant + FIXED] = partial(_rate, partial(from_one_batch, agent), device, seconds)
    return measures


def compare_updates(words: str, rounds: Rounds) -> list[Comparison]:
    """Compare variants with the eager one, and each with itself on one fixed batch."""
    pairs = [(n, "eager") for n in rounds if n != "eager" and not n.endswith(FIXED)]
    pairs += [(n, n + FIXED) for n in rounds if n + FIXED in rounds]
    return [
        compare(rounds, ours, other, what=f"GPU, {words}: {ours} / {other}", unit="opt steps/s")
        for ours, other in pairs
    ]


def measure_moving(
    case: Case, replays: tuple[ReplayBuffer, ReplayBuffer], device: str, seconds: float
) -> dict[str, Callable[[], float]]:
    """Return what measures batches a second that arrive: from the host, and on the device."""

    def arrive(move: BatchMover, replay: ReplayBuffer) -> int:
        move(replay.sample(case.sizes.batch))
        return 1

    turns = {
        name: partial(arrive, BatchMover(torch.device(device), TRANSITION_COLUMNS), replay)
        for name, replay in zip(MOVING, replays, strict=True)
    }
    return {name: partial(_rate, turn, device, seconds) for name, turn in turns.items()}


def measure_parity(
    case: Case, replay: ReplayBuffer, variants: tuple[str, str], device: str, opt_steps: int
) -> float:
    """Return how far two variants are apart that have learned from the same batches."""
    agents = [
        on(device, case.agent, variant).build(case.spec, PolicyContext(seed=0))
        for variant in variants
    ]
    for _ in range(opt_steps):
        batch = replay.sample(case.sizes.batch)
        for agent in agents:
            agent.opt(batch)
    first, second = (agent.model_info().params for agent in agents)
    return largest_difference(first, second)


def largest_difference(first: Params, second: Params) -> float:
    """Return the largest difference of two models, relative to each array's largest number."""
    if set(first) != set(second):
        raise ValueError(f"the models differ in {sorted(set(first) ^ set(second))}")
    return max(
        float(np.abs(first[name] - second[name]).max() / max(np.abs(first[name]).max(), 1e-30))
        for name in first
    )


def measure_run(
    name: str, variant: str, device: str, args: argparse.Namespace
) -> tuple[float, float]:
    """Return optimisation steps and environment steps a second of a whole run."""
    case = CASES[name]
    size = case.sizes.batch
    run = Run(
        agent=on(device, case.agent, variant),
        envs=EnvConfig(id=ENVS[name], n_envs=args.envs_per_actor),
        config=AsyncConfig(
            actors=args.actors,
            limiter=RateLimiterConfig(samples_per_insert=0.0, min_size=4096),
            trainer=AsyncTrainerConfig(batch_size=size),
            evaluation=EvaluationConfig(where="off"),
        ),
        seconds=args.seconds,
        threads=1,
    )
    opt_steps_per_s, samples_per_insert = in_own_process(partial(measure_loaded, run, pinned=False))
    return opt_steps_per_s, opt_steps_per_s * size / samples_per_insert


def _rate(turn: Callable[[], int], device: str, seconds: float) -> float:
    """Return how often a second something is done, all of it: orders alone do not count."""
    ready = time.perf_counter() + seconds / 4
    for _ in range(8):  # compiles and records what is to be
        turn()
    while time.perf_counter() < ready:
        turn()
    _settle(device)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        count += turn()
    _settle(device)
    return count / (time.perf_counter() - began)


def _settle(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__, repeats=3)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=["sac", "dqn"])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--device", default="cuda", help="cpu tries the script itself out")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--opt-steps", type=int, default=200, help="before models are compared")
    parser.add_argument("--actors", type=int, default=2, help="of whole runs; 0 leaves them out")
    parser.add_argument("--envs-per-actor", type=int, default=16)
    return parser.parse_args()


def main() -> None:
    """Measure all in turns, case by case."""
    args = arguments()
    on_gpu = torch.device(args.device).type == "cuda"
    if on_gpu and not torch.cuda.is_available():
        sys.stdout.write(f"torch {torch.__version__} sees no GPU here, so nothing was measured.\n")
        return
    torch.set_num_threads(1)
    gpu = torch.cuda.get_device_name(args.device) if on_gpu else ""
    origin = provenance() | {"gpu": gpu}
    comparisons: list[Comparison] = []
    details: dict[str, object] = {}
    for name in args.cases:
        case = CASES[name]
        note(case.words)
        replay = full_replay(case)
        rounds = in_turns(
            updates_of(case, replay, args.variants, args.device, args.seconds), args.repeats
        )
        pair = replay, full_replay(case, device=args.device)
        moved = in_turns(measure_moving(case, pair, args.device, args.seconds), args.repeats)
        comparisons += compare_updates(case.words, rounds)
        what = f"GPU, {case.words}: {MOVING[0]} / {MOVING[1]}"
        comparisons.append(compare(moved, *MOVING, what=what, unit="batches/s"))
        apart = {
            variant: measure_parity(case, replay, ("eager", variant), args.device, args.opt_steps)
            for variant in args.variants
        }
        runs = {
            variant: measure_run(name, variant, args.device, args)
            for variant in args.variants
            if args.actors
        }
        details[name] = {
            "opt_steps_per_s": rounds,
            "batches_per_s": moved,
            "largest_relative_difference_from_eager": apart,
            "runs_opt_steps_per_s_and_env_steps_per_s": runs,
        }
    settings = settings_of(args)
    path = save(
        args.results,
        "gpu",
        question=__doc__,
        settings=settings,
        comparisons=comparisons,
        origin=origin,
        details=details,
    )
    show(path)


if __name__ == "__main__":
    main()
