"""Seconds to a score with the command that a user types, beside Stable-Baselines3.

    python -m benchmarks.learning.commands                       # what is missing, in turns
    python -m benchmarks.learning.commands --only halfcheetah hopper --seeds 3
    python -m benchmarks.learning.commands --table               # write the table into the page

A row names an environment and a bar. asyncrl runs `train --env ID --stop-at-return BAR`, with
evaluations as they come, so the preset is the suggested one. Stable-Baselines3 runs the same
algorithm with equal settings in one process; the time of its evaluations does not count. The two
take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.agents.ppo import PPOConfig
from asyncrl.training.run_config import RunConfig
from asyncrl.training.yaml_file import load_yaml
from benchmarks.common import ASYNCRL, FIRST_SEED, PAGE, RESULTS, ROOT, note, positive, publish
from benchmarks.learning.freshness import machines
from benchmarks.learning.runs import Point, Run, keep, kept, origin
from benchmarks.peers.apart import python_of, run_apart

DIRECTORY = RESULTS / "learning" / "commands"
MARKS = "<!-- commands: written by learning/commands.py -->", "<!-- end of commands -->"
OURS, PEER = "asyncrl", "sb3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An environment and a score."""

    env: str
    bar: float
    max_s: float = 120.0
    seeds: int = 10


ROWS: Mapping[str, Row] = {
    "cartpole": Row(env="CartPole-v1", bar=475.0),
    "acrobot": Row(env="Acrobot-v1", bar=-90.0),
    "mountaincar": Row(env="MountainCar-v0", bar=-110.0),
    "mountaincar-continuous": Row(env="MountainCarContinuous-v0", bar=90.0),
    "pendulum": Row(env="Pendulum-v1", bar=-150.0),
    "taxi": Row(env="Taxi-v4", bar=7.0),
    "lunarlander": Row(env="LunarLander-v3", bar=200.0),
    "lunarlander-continuous": Row(env="LunarLanderContinuous-v3", bar=200.0),
    "bipedalwalker": Row(env="BipedalWalker-v3", bar=250.0, max_s=240.0),
    "halfcheetah": Row(env="HalfCheetah-v5", bar=2500.0),
    "halfcheetah-5000": Row(env="HalfCheetah-v5", bar=5000.0),
    "hopper": Row(env="Hopper-v5", bar=2000.0, max_s=240.0),
    "walker2d": Row(env="Walker2d-v5", bar=3000.0, max_s=300.0, seeds=5),
    "ant": Row(env="Ant-v5", bar=2500.0, max_s=600.0, seeds=5),
    "fetchreach": Row(env="gymnasium_robotics:FetchReach-v4", bar=-2.5, max_s=300.0, seeds=5),
    "breakout": Row(
        env="benchmarks.learning.environments:minatar_breakout", bar=8.0, max_s=600.0, seeds=5
    ),
    "pong": Row(env="ALE/Pong-v5", bar=15.0, max_s=3600.0, seeds=5),
}


def ours(name: str, seed: int) -> Run:
    """Run the command, and read what it has written."""
    row, started = ROWS[name], origin()
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        words = ["train", "--env", row.env, "--stop-at-return", f"{row.bar:g}", "--seed", str(seed)]
        words += ["--max-seconds", f"{row.max_s:g}", "--run-dir", str(run_dir), "--quiet"]
        begun = time.perf_counter()
        subprocess.run(  # noqa: S603  # our own command
            [*ASYNCRL, *words], check=True, cwd=ROOT, capture_output=True, timeout=row.max_s + 300
        )
        whole_s = time.perf_counter() - begun
        records = [json.loads(line) for line in (run_dir / "metrics.jsonl").open(encoding="utf-8")]
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        config = load_yaml(RunConfig, run_dir / "config.yaml")
        agent = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))["starts"][0]["agent"]
    curve = [
        (int(r["env_steps"]), round(r["wall_s"], 2), r["eval_reward"])
        for r in records
        if "eval_reward" in r
    ]
    return Run(
        algorithm=agent,
        task=name,
        mode=OURS,
        seed=seed,
        settings=equal_settings(config),
        score=max((point[2] for point in curve), default=float("nan")),
        score_std=0.0,
        reached=summary["seconds_to_stop_bar"] is not None,
        wall_s=round(summary["seconds_to_stop_bar"] or summary["wall_s"], 2),
        env_steps=summary["env_steps"],
        opt_steps=summary["opt_steps"],
        stop_reason=summary["stop_reason"],
        curve=curve,
        details={"whole_s": round(whole_s, 2), "command": " ".join(words[:5])},
        origin=started,
    )


def equal_settings(config: RunConfig) -> dict[str, Any]:
    """Return Stable-Baselines3's settings for the same PPO; empty for another agent."""
    agent = config.agent
    if not isinstance(agent, PPOConfig):
        return {}
    batch, width = config.trainer.batch_size, {"pi": [*agent.hidden], "vf": [*agent.hidden]}
    n_envs = config.actors * config.envs_per_actor
    return {
        "n_envs": n_envs,
        "threads": 1,
        "norm_obs": agent.normalize_obs,
        "norm_reward": agent.normalize_reward,
        "ppo": {
            "n_steps": max(1, batch // n_envs),
            "batch_size": batch // agent.minibatches,
            "n_epochs": agent.epochs,
            "learning_rate": agent.learning_rate,
            "gamma": getattr(config.replay, "gamma", 0.99),
            "gae_lambda": agent.lambda_,
            "clip_range": agent.clip,
            "ent_coef": agent.entropy_weight,
            "vf_coef": agent.value_weight,
            "max_grad_norm": agent.max_grad_norm,
            "policy_kwargs": {"net_arch": width, "log_std_init": agent.initial_log_std},
        },
    }


def peer(name: str, beside: Run) -> Run:
    """Run Stable-Baselines3 with the settings of a run."""
    row, started = ROWS[name], origin()
    asked = {
        **beside.settings,
        "env": row.env,
        "bar": row.bar,
        "max_s": row.max_s,
        "seed": beside.seed,
        "evaluate_every_s": 2.0,
        "episodes": 10,
    }
    command = [str(python_of(PEER)), "-m", "benchmarks.peers.sb3_to_score", json.dumps(asked)]
    begun = time.perf_counter()
    printed, error = run_apart(command, limit_s=20 * row.max_s)
    if error:
        raise RuntimeError(f"{name}: {error}")
    curve: list[Point] = printed["curve"]
    return Run(
        algorithm=beside.algorithm,
        task=name,
        mode=PEER,
        seed=beside.seed,
        settings=beside.settings,
        score=max(point[2] for point in curve),
        score_std=0.0,
        reached=printed["reached"],
        wall_s=printed["wall_s"],
        env_steps=printed["env_steps"],
        curve=curve,
        details={"whole_s": round(time.perf_counter() - begun, 2), "version": printed["version"]},
        origin=started,
    )


def render(runs: Sequence[Run]) -> str:
    """Return the table of all rows, best seen beside each other."""
    lines = [
        "",
        "| task, bar | preset | seconds of the run | of the command | env steps | at the bar |"
        " Stable-Baselines3, equal settings | at the bar | times as fast |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in ROWS.items():
        own, other = ([r for r in runs if (r.task, r.mode) == (name, m)] for m in (OURS, PEER))
        if own:
            lines.append(f"| {' | '.join(_cells(row, own, other))} |")
    rows = [{"origin": run.origin} for run in runs]
    return "\n".join([*lines, "", *machines(rows), ""])


def _cells(row: Row, own: Sequence[Run], other: Sequence[Run]) -> list[str]:
    """Return a line; medians count a run that missed the bar as longer than all others."""
    times = _median([r.wall_s if r.reached else float("inf") for r in own])
    theirs = _median([r.wall_s if r.reached else float("inf") for r in other])
    missed = "" if times < float("inf") else "not reached"
    return [
        f"{row.env.rpartition(':')[2]}, {row.bar:g}",
        own[0].algorithm,
        missed or f"{times:.1f}",
        missed or f"{_median([r.details['whole_s'] for r in own]):.1f}",
        f"{_median([r.env_steps for r in own]):,.0f}",
        _share(own),
        "" if not other else "not reached" if theirs == float("inf") else f"{theirs:.1f}",
        _share(other),
        f"**{theirs / times:.2f}**" if other and max(times, theirs) < float("inf") else "",
    ]


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("inf")


def _share(runs: Sequence[Run]) -> str:
    return f"{sum(run.reached for run in runs)} of {len(runs)}" if runs else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Do the runs that are missing, or write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[*ROWS], choices=[*ROWS])
    parser.add_argument("--seeds", type=positive, default=10, help="at most")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--alone", action="store_true", help="without Stable-Baselines3")
    parser.add_argument("--table", action="store_true", help="write the table into the page")
    parser.add_argument("--results", type=Path, default=DIRECTORY)
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args(argv)
    if args.table:
        publish(args.page, render(kept(args.results)), MARKS)
        return 0
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for name in args.only:
            if seed - args.first_seed < ROWS[name].seeds:
                _take(name, seed, args)
    return 0


def _take(name: str, seed: int, args: argparse.Namespace) -> None:
    """Run both sides of a row with a seed, unless they are kept."""
    before = {(r.task, r.mode, r.seed): r for r in kept(args.results)}
    run = before.get((name, OURS, seed))
    if run is None:
        run = ours(name, seed)
        _keep(run, args.results)
    has_peer = run.settings and not args.alone and python_of(PEER).exists()
    if has_peer and (name, PEER, seed) not in before:
        _keep(peer(name, run), args.results)


def _keep(run: Run, directory: Path) -> None:
    keep(directory, run)
    bar = "at the bar" if run.reached else "missed it"
    note(f"{run.task} {run.seed} {run.mode}: {bar}, {run.wall_s:.1f} s, {run.env_steps:,} steps")


if __name__ == "__main__":
    raise SystemExit(main())
