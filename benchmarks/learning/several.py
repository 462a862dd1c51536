"""Do several learners learn as much from each step as one?

    python -m benchmarks.learning.several dqn/cartpole --learners 1 2 3 --seeds 100 101 102 103 104

Runs of one, two and three learners have equal settings, whole batches, seeds and optimisation
steps; each is a separate command, evaluated greedily on the same episodes. Scores are those of
`freshness.py`: 0 is the return of random actions, 1 the task's bar. Runs that are kept are not done
again. Time is not measured. Without a case, the table is written into the page.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.core.settings import to_plain
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.yaml_file import save_yaml
from benchmarks.common import ASYNCRL, PAGE, make_parser, note, publish
from benchmarks.learning import freshness
from benchmarks.learning.freshness import iqm, kept, load, machines, normalised, scores_of
from benchmarks.learning.runs import origin

Row = dict[str, Any]

OPT_STEPS: Mapping[str, int] = {"dqn/cartpole": 2500, "sac/halfcheetah": 10_000}
_BATCH_SIZES: Mapping[str, int] = {"dqn/cartpole": 96, "sac/halfcheetah": 240}
"""Whole batches near those of the presets; 2 and 3 divide them."""

_ACTORS = 6
_POINTS = 5
"""Evaluations of a run, at equal distances; the last is at its end."""

_RESAMPLES = 5000
_TIMEOUT_S = 900.0
MARKS = "<!-- several: written by learning/several.py -->", "<!-- end of several -->"


def config_of(case: str, seed: int) -> RunConfig:
    """Return the settings of a run, whatever the number of learners."""
    config = freshness.config_of(case, seed, _ACTORS)
    replay: Any = config.replay
    agent: Any = config.agent
    if case == "sac/halfcheetah":
        # Steps of the preset's networks take too long; so few of them need a higher rate.
        agent = replace(agent, hidden=(64, 64), actor_learning_rate=1e-3)
    capacity = min(replay.capacity, 120_000)  # more than a run makes
    play, every = config.evaluate.play, OPT_STEPS[case] // _POINTS
    return replace(
        config,
        agent=agent,
        max_opt_steps=OPT_STEPS[case],
        trainer=replace(config.trainer, batch_size=_BATCH_SIZES[case]),
        replay=replace(replay, capacity=capacity - capacity % _ACTORS),
        save=replace(config.save, interval_opt_steps=0, interval_s=0.0, replay=False),
        evaluate=EvaluationConfig(interval_opt_steps=every, final_timeout_s=120.0, play=play),
    )


def train(case: str, learners: int, seed: int) -> Row:
    """Train, and return the record of the run."""
    config, begun = config_of(case, seed), origin()
    with tempfile.TemporaryDirectory() as directory:
        settings, run = Path(directory) / "settings.yaml", Path(directory) / "run"
        save_yaml(config, settings)
        command = [*ASYNCRL, "train", "--config", settings, "--learners", learners]
        subprocess.run(  # noqa: S603  # our own command line
            [*map(str, command), "--quiet", "--run-dir", str(run)],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
        )
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return {
        "case": case,
        "learners": learners,
        "seed": seed,
        "returns": scores_of(map(json.loads, lines)),
        "env_steps": summary["env_steps"],
        "opt_steps": summary["opt_steps"],
        "settings": to_plain(config),
        "origin": {**begun, "time": time.strftime("%H:%M")},
    }


def render(rows: Sequence[Row]) -> str:
    """Return the table of scores by the number of learners."""
    lines = [
        "",
        "| case | whole batch | learners | seeds | env steps | at the end | over the run |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    keys = sorted({(row["case"], row["learners"]) for row in rows})
    for case, learners in keys:
        of_it = [row for row in rows if (row["case"], row["learners"]) == (case, learners)]
        scores = np.array([normalised(row) for row in of_it]).T
        steps = f"{np.median([row['env_steps'] for row in of_it]):,.0f}"
        cells = [f"{case}, {OPT_STEPS[case]:,} opt steps", f"{_BATCH_SIZES[case]}"]
        cells += [f"{learners}", f"{len(of_it)}", steps, *map(_interval, scores)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *machines(rows), ""])


def _interval(scores: Any) -> str:  # noqa: ANN401  # an array
    drawn = iqm(np.random.default_rng(0).choice(scores, (_RESAMPLES, len(scores))))
    low, high = np.percentile(drawn, (2.5, 97.5))
    return f"{iqm(scores):.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    """Do the missing runs, and print the table of all saved runs."""
    parser = make_parser(__doc__)
    parser.add_argument("case", choices=[*OPT_STEPS], nargs="?", help="without it: write the table")
    parser.add_argument("--learners", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[100])
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    path = args.results / "several_learners.json"
    for seed in args.seeds if args.case else ():
        for learners in args.learners:
            key = (args.case, learners, seed)
            with kept(path, __doc__) as rows:
                done = any((row["case"], row["learners"], row["seed"]) == key for row in rows)
            if done:
                continue
            row = train(*key)
            with kept(path, __doc__) as rows:
                rows.append(row)
            note(f"{args.case} learners {learners} seed {seed}: {row['returns']}")
    with kept(path) as rows:
        print(render(rows))
    if not args.case:
        publish(args.page, render(load(path)), MARKS)


if __name__ == "__main__":
    main()
