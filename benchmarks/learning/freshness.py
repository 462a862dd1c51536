"""Does an asynchronous run learn as much from each step as a synchronous one?

    python -m benchmarks.learning.freshness sac/pendulum --seeds 100 101 102 --actors 2

Both modes run with equal settings, seeds, environments and optimisation steps, and are evaluated
greedily on the same episodes at the same optimisation steps. Runs that are kept are not done again.
Several processes may add runs to the same file at once.

Returns of some tasks are negative, so scores are normalised: 0 is the return of random actions, 1
the task's bar. Time is not measured. Without a case, the table is written into the page.
"""

from __future__ import annotations

import fcntl
import json
import os
import statistics
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.tools.bench.result import title
from benchmarks.common import PAGE, is_clean, make_parser, note, publish, write_json
from benchmarks.learning.runs import of_same_settings, origin
from benchmarks.learning.tasks import TASKS, Case, case_of
from benchmarks.learning.training import MODES, settings_of

OPT_STEPS: Mapping[str, int] = {
    "crossq/halfcheetah": 9000,
    "sac/halfcheetah": 9000,
    "sac/pendulum": 2000,
    "dqn/cartpole": 2500,
    "dqn/lunarlander": 3000,
    "ppo/halfcheetah": 100,
    "ppo/cartpole": 8,
    "ppo/pendulum": 150,
    "ppo/lunarlander": 60,
}
"""Steps of each case: its learning curve is still steep there."""

_CASES = (
    *(Case(algorithm=name, task="lunarlander") for name in ("dqn", "ppo")),
    Case(algorithm="ppo", task="halfcheetah", preset="ppo-mujoco"),
)
"""Cases that the learning table lacks."""

MARKS = "<!-- freshness: written by learning/freshness.py -->", "<!-- end of freshness -->"

_POINTS = 10
"""Evaluations of a run, at equal distances; the last is at its end."""

_MODES = ("sync", "async")
_RESAMPLES = 5000

Row = dict[str, Any]
Numbers = npt.NDArray[np.float64]


def config_of(case: str, seed: int, actors: int) -> RunConfig:
    """Return the settings of a run; the total number of environments does not depend on actors."""
    cases = {one.name: one for one in _CASES}
    config = (cases.get(case) or case_of(case)).config(seed)
    opt_steps = OPT_STEPS[case]
    return replace(
        config,
        actors=actors,
        envs_per_actor=max(1, config.envs_per_actor * config.actors // actors),
        max_env_steps=0,
        max_opt_steps=opt_steps,
        max_seconds=0.0,
        stop_at_return=None,
        record=replace(config.record, interval_s=1.0),
        evaluate=EvaluationConfig(
            interval_opt_steps=-(-opt_steps // _POINTS), where="inline", play=config.evaluate.play
        ),
    )


def scores_of(records: Iterable[Mapping[str, float]]) -> dict[int, float]:
    """Return the score of each evaluated model, by its optimisation steps."""
    return {
        int(record["eval/model_version"]): round(record["eval_reward"], 2)
        for record in records
        if "eval_reward" in record
    }


def train(case: str, mode: str, config: RunConfig) -> Row:
    """Train, and return the record of the run."""
    begun, recorder = origin(), MemoryRecorder()
    with tempfile.TemporaryDirectory() as directory:
        result = MODES[mode](config, recorder, Path(directory))
    return {
        "case": case,
        "mode": mode,
        "actors": config.actors,
        "seed": config.seed,
        "returns": scores_of(recorder.records),
        "env_steps": result.env_steps,
        "opt_steps": result.opt_steps,
        "lag_at_insert_mean": _of(recorder, "lag/at_insert_mean", statistics.median),
        "lag_at_insert_max": _of(recorder, "lag/at_insert_max", max),
        "settings": settings_of(config, mode),
        "origin": begun,
    }


def _of(recorder: MemoryRecorder, name: str, take: Any) -> float | None:  # noqa: ANN401
    values = [record[name] for record in recorder.records if name in record]
    return round(take(values), 2) if values else None


def iqm(scores: Numbers) -> Numbers:
    """Return the interquartile mean along the last axis."""
    cut = scores.shape[-1] // 4
    ordered = np.sort(scores, axis=-1)
    mean: Numbers = ordered[..., cut : scores.shape[-1] - cut].mean(axis=-1)
    return mean


def normalised(row: Row, of: Collection[str] | None = None) -> tuple[float, float]:
    """Return a run's score at its end, and the mean over its evaluations, `of` some models only."""
    task = TASKS[row["case"].partition("/")[2]]
    returns = [score for model, score in row["returns"].items() if of is None or model in of]
    scores = (np.array(returns) - task.random) / (task.bar - task.random)
    return float(scores[-1]), float(scores.mean())


def load(path: Path) -> list[Row]:
    """Return the saved rows, without those of uncommitted code."""
    rows = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    return [row for row in rows if is_clean(row["origin"])]


def render(rows: Sequence[Row]) -> str:
    """Return the table of scores in both modes and their ratio."""
    lines = [
        "",
        "| case | actors | seeds | at the end: sync | async | ratio | over the run: sync |"
        " async | ratio | lag when stored, opt steps |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case, actors in dict.fromkeys((row["case"], row["actors"]) for row in rows):
        of_case = [row for row in rows if (row["case"], row["actors"]) == (case, actors)]
        sides = [[row for row in of_case if row["mode"] == mode] for mode in _MODES]
        if all(sides):
            lines.append(f"| {' | '.join(_cells(case, actors, *sides))} |")
    return "\n".join([*lines, "", *machines(rows), ""])


def _cells(case: str, actors: int, sync: Sequence[Row], asynchronous: Sequence[Row]) -> list[str]:
    counts = dict.fromkeys(f"{len(side)}" for side in (sync, asynchronous))
    cells = [f"{case}, {OPT_STEPS[case]:,} opt steps", str(actors), " and ".join(counts)]
    # An asynchronous run leaves out evaluations that would take more than their share of time.
    seen = {row["seed"]: row["returns"] for row in asynchronous}
    sides = (
        np.array([normalised(row, seen.get(row["seed"])) for row in side]).T
        for side in (sync, asynchronous)
    )
    for both in zip(*sides, strict=True):
        cells += _compared(*both)
    mean = statistics.median(row["lag_at_insert_mean"] for row in asynchronous)
    most = max(row["lag_at_insert_max"] for row in asynchronous)
    return [*cells, f"{mean:.1f}, at most {most:.0f}"]


def machines(rows: Sequence[Row]) -> list[str]:
    """Return lines that say what the runs were made with."""
    commits: dict[str, set[str]] = {}
    for row in rows:
        commits.setdefault(title(row["origin"]["machine"]), set()).add(row["origin"]["commit"])
    return [f"{name}. Commits: {', '.join(sorted(of))}." for name, of in commits.items()]


def _compared(sync: Numbers, asynchronous: Numbers) -> list[str]:
    random = np.random.default_rng(0)
    drawn = [iqm(random.choice(side, (_RESAMPLES, len(side)))) for side in (sync, asynchronous)]
    cells = []
    for value, values in (
        (iqm(sync), drawn[0]),
        (iqm(asynchronous), drawn[1]),
        (iqm(asynchronous) / iqm(sync), drawn[1] / drawn[0]),
    ):
        low, high = np.percentile(values, (2.5, 97.5))
        cells.append(f"{value:.2f} ({low:.2f} to {high:.2f})")
    return cells


@contextmanager
def kept(path: Path, question: str | None = __doc__) -> Iterator[list[Row]]:
    """Yield the saved rows and save them afterwards; one process at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        rows = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
        before = len(rows)
        yield rows
        if len(rows) != before:
            asked = (question or "").partition("\n")[0]
            write_json(path, {"name": path.stem, "question": asked, "runs": rows})
    finally:
        os.close(directory)


def _is_done(rows: Sequence[Row], case: str, mode: str, config: RunConfig) -> bool:
    key, settings = (case, mode, config.actors, config.seed), settings_of(config, mode)
    return any(
        (row["case"], row["mode"], row["actors"], row["seed"]) == key
        and of_same_settings(row["settings"], settings)
        for row in rows
    )


def main() -> None:
    """Do the missing runs, and print the table of all saved runs."""
    parser = make_parser(__doc__)
    parser.add_argument("case", choices=[*OPT_STEPS], nargs="?", help="without it: write the table")
    parser.add_argument("--modes", choices=_MODES, nargs="+", default=_MODES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[100])
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    path = args.results / "freshness.json"
    for seed in args.seeds if args.case else ():
        config = config_of(args.case, seed, args.actors)
        for mode in args.modes:
            with kept(path) as rows:
                if _is_done(rows, args.case, mode, config):
                    continue
            row = train(args.case, mode, config)
            with kept(path) as rows:
                rows.append(row)
            note(f"{mode} seed {seed}: {row['returns']}, lag {row['lag_at_insert_mean']}")
    with kept(path) as rows:
        print(render(rows))
    if not args.case:
        publish(args.page, render(load(path)), MARKS)


if __name__ == "__main__":
    main()
