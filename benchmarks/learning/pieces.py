"""The runs of the benchmark, one by one: each is a separate process that prints its result."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.common import FIRST_SEED, ROOT
from benchmarks.learning.offline import OFFLINE_CASES, OfflineCase
from benchmarks.learning.offline import missing as missing_offline
from benchmarks.learning.runs import Run, of_same_settings, origin
from benchmarks.learning.tasks import CASES, EQUAL, OURS, TASKS, Case, Duel, absent, missing
from benchmarks.learning.training import settings_of
from benchmarks.peers.apart import python_of

_SLACK_S = 600.0
"""Seconds for imports, for building, and for the final evaluation."""

_DUEL_S = 3600.0


class Failed(Exception):
    """A piece printed no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A finished or planned run."""

    name: str
    """Algorithm and task."""

    mode: str
    seed: int
    reason: str
    """Why it cannot run here; empty if it can."""

    settings: Callable[[], Mapping[str, Any]]
    command: tuple[str, ...]
    limit_s: float

    def __str__(self) -> str:
        return f"{self.name}, {self.mode}, seed {self.seed}"

    def done(self, runs: Iterable[Run]) -> Run | None:
        """Return the finished run."""
        for run in runs:
            if (run.name, run.mode, run.seed) == (self.name, self.mode, self.seed):
                same = self.reason or of_same_settings(run.settings, self.settings())
                return run if same else None
        return None

    def run(self) -> Run:
        """Run it; raise `Failed` if it prints no result."""
        started = origin()
        try:
            done = subprocess.run(  # noqa: S603  # our own scripts
                self.command,
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=self.limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{self}: not done after {self.limit_s:g} s") from error
        if done.returncode:
            raise Failed(f"{self}: {' '.join(self.command)} failed:\n{done.stderr[-2000:]}")
        algorithm, _, task = self.name.partition("/")
        return Run(
            algorithm=algorithm,
            task=task,
            mode=self.mode,
            seed=self.seed,
            settings=self.settings(),
            origin=started,
            **_fields(json.loads(done.stdout.splitlines()[-1])),
        )


def pieces_of_cases(seeds: int = 0, max_env_steps: int = 0) -> list[Piece]:
    """Return all runs to a score, seed by seed: first asynchronous and offline, then synchronous.

    Args:
        seeds: Maximum number of seeds per case, from `FIRST_SEED` on; 0 uses the task's number.
        max_env_steps: A smaller budget than the task's, to try things out.
    """
    pieces = []
    for i in range(seeds or max(task.seeds for task in TASKS.values())):
        cases = [case for case in CASES if i < (seeds or TASKS[case.task].seeds)]
        offline = [case for case in OFFLINE_CASES if i < (seeds or TASKS[case.task].seeds)]
        seed = FIRST_SEED + i
        pieces += [_of_case(case, "async", seed, max_env_steps) for case in cases]
        pieces += [_of_offline_case(case, seed) for case in offline]
        pieces += [_of_case(case, "sync", seed, max_env_steps) for case in cases]
    return pieces


def pieces_of_duels(seeds: int) -> list[Piece]:
    """Return all runs of both sides with equal settings and environment steps."""
    return [
        _of_duel(duel, side, seed)
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        for duel in EQUAL
        for side in (OURS, *duel.peers)
    ]


def _of_case(case: Case, mode: str, seed: int, max_env_steps: int) -> Piece:
    arguments = [case.name, "--mode", mode, "--seed", seed, "--max-env-steps", max_env_steps]
    return Piece(
        name=case.name,
        mode=mode,
        seed=seed,
        reason=missing(case),
        settings=lambda: settings_of(case.config(seed, max_env_steps), mode),
        command=_command(sys.executable, "learning.training", arguments),
        limit_s=TASKS[case.task].max_seconds + _SLACK_S,
    )


def _of_offline_case(case: OfflineCase, seed: int) -> Piece:
    return Piece(
        name=case.name,
        mode="offline",
        seed=seed,
        reason=missing_offline(case),
        settings=partial(case.plain, seed),
        command=_command(sys.executable, "learning.offline", [case.name, "--seed", seed]),
        limit_s=TASKS[case.task].max_seconds + _SLACK_S,
    )


def _of_duel(duel: Duel, side: str, seed: int) -> Piece:
    task = TASKS[duel.task]
    settings: Callable[[], Mapping[str, Any]]
    if side == OURS:
        settings = partial(_our_settings, duel, seed)
        command = _command(
            sys.executable, "learning.training", [duel.name, "--mode", OURS, "--seed", seed]
        )
    else:
        theirs = duel.peers[side]
        settings = partial(dict, env=task.env, env_steps=duel.env_steps, settings=theirs)
        arguments = [f"score-{duel.algorithm}", "--env", task.env, "--env-steps", duel.env_steps]
        arguments += ["--settings", json.dumps(theirs)]
        command = _command(str(python_of(side)), f"peers.{side}", [*arguments, "--seed", seed])
    return Piece(
        name=duel.name,
        mode=side,
        seed=seed,
        reason=absent(duel, side),
        settings=settings,
        command=command,
        limit_s=_DUEL_S,
    )


def _our_settings(duel: Duel, seed: int) -> Mapping[str, Any]:
    return settings_of(duel.config(seed), OURS)


def _command(python: str, script: str, arguments: list[Any]) -> tuple[str, ...]:
    return (python, "-m", f"benchmarks.{script}", *map(str, arguments))


def _fields(printed: dict[str, Any]) -> dict[str, Any]:
    """Return fields of `Run`; what a peer prints has more."""
    if "peer" not in printed:
        return printed
    details = {"version": printed["version"], "settings": printed["settings"]}
    names = ("score", "score_std", "wall_s", "env_steps", "opt_steps")
    return {"details": details, **{name: printed[name] for name in names}}
