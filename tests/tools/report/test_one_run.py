from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from asyncrl.run.presets import preset
from asyncrl.tools.report.curves import Curves
from asyncrl.tools.report.one_run import evaluations, report_of_run
from asyncrl.tools.report.run_files import RunFiles
from tests.tools.report.runs import made_run

RECORDS: list[dict[str, float]] = [
    {
        "env_steps": 160.0 * k,
        "opt_steps": 10.0 * k,
        "wall_s": 1.0 * k,
        "agent/loss": 1.0 / (k + 1),
        "agent/count": 10.0,
        **({"agent/loss_min": 0.0, "agent/loss_max": 3.0} if k else {}),
        "episode/return_mean": 2.0 * k,
        "episode/return_min": 1.0 * k,
        "episode/return_max": 4.0 * k,
        "actor/0/restarts": float(k > 2),
        "actor/0/env_steps_per_s": 100.0,
        "actor/1/env_steps_per_s": 90.0,
        "share/learner_opt": 0.75,
        "share/learner_wait": 0.25,
        **({"eval_reward": 5.0 * k, "eval/model_version": 10.0 * k - 5} if k % 2 else {}),
    }
    for k in range(6)
]
SUMMARY: dict[str, Any] = {
    "best_score": 25.0,
    "stop_reason": "50 optimisation steps are done",
    "verdict": {"kind": "balanced", "sentence": "balanced: actors & learner are busy"},
    "actors": {"0": {"env_steps": 480, "restarts": 1}, "1": {"env_steps": 320, "restarts": 0}},
    "ledger": {"produced": 800, "stored": 790, "dropped": 0, "lost": 10, "in_flight": 0},
    "lag_histogram": {"0": 300, "8": 100, "16": 0},
    "wall_s": 5.0,
    "opt_steps": 50,
}


def data_of(html: str) -> Any:
    found = re.search(r"<script type=application/json id=data>(.*?)</script>", html, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_page_shows_what_the_run_wrote(tmp_path: Path) -> None:
    config = replace(preset("dqn"), seed=7)
    run = made_run(tmp_path / "mine", config, records=RECORDS, summary=SUMMARY)
    html = report_of_run(RunFiles(run))
    for shown in (
        "<h1>mine</h1>",
        "<dt>best score</dt><dd>25</dd>",
        "balanced: actors &amp; learner are busy",
        "Ended because 50 optimisation steps are done.",
        "<td class=number>480</td>",
        "<td class=number>790</td>",
        *("<td class=number>8</td>", '<rect width="33.3%"', "<td class=number>25.0%</td>"),
        *("<td class=number>4</td>", "<td class=number>0.0%</td>"),
        "differs from the preset",
    ):
        assert shown in html
    titles = re.findall(r"<figcaption>([^<]*)", html)
    assert titles == [
        "Return of an episode",
        "loss",
        "Learner",
        "Policy lag of sampled data",
        "Steps per second of each actor",
    ]
    charts = data_of(html)["charts"]
    assert [one["label"] for one in charts[0]["series"]] == ["evaluation", "training"]
    assert charts[0]["series"][1]["high"] == [0, 4, 8, 12, 16, 20]
    losses = charts[1]["series"][0]
    assert (losses["low"], losses["high"]) == ([1, 0, 0, 0, 0, 0], [1, 3, 3, 3, 3, 3])
    assert charts[2]["stacked"]
    assert charts[3]["marks"] == [{"env_steps": 480.0, "opt_steps": 30.0, "wall_s": 3.0}]


def test_evaluation_stands_at_the_model_that_it_scored() -> None:
    curves = Curves()
    for record in RECORDS:
        curves.add(record)
    at, (scores,) = evaluations(curves, "eval_reward")
    assert scores == [5.0, 15.0, 25.0]
    assert at["opt_steps"] == [5.0, 25.0, 45.0]
    assert at["env_steps"] == [80.0, 400.0, 720.0]
    assert at["wall_s"] == [1.0, 3.0, 5.0]


def test_last_warnings_are_shown(tmp_path: Path) -> None:
    run = made_run(tmp_path / "mine", preset("dqn"), records=RECORDS)
    assert "Warnings" not in report_of_run(RunFiles(run))
    lines = [f"warning {k} of <b>\n" for k in range(5000)]
    (run / "warnings.log").write_text("".join(lines))
    shown = report_of_run(RunFiles(run)).partition("<h2>Warnings</h2><pre>")[2]
    assert shown.startswith("warning 4950 of &lt;b&gt;\n")
    assert "warning 4999 of &lt;b&gt;\n</pre>" in shown


def test_failed_run_shows_its_error(tmp_path: Path) -> None:
    run = made_run(tmp_path / "mine", preset("dqn"), records=RECORDS)
    (run / "error.txt").write_text("Traceback ...\nValueError: <no> gravity\n")
    html = report_of_run(RunFiles(run))
    assert "<p class=bad>ValueError: &lt;no&gt; gravity</p>" in html


def test_headline_says_where_it_ran_and_how_to_repeat_it(tmp_path: Path) -> None:
    run = made_run(
        tmp_path / "mine",
        preset("dqn"),
        records=RECORDS,
        summary=SUMMARY | {"seconds_to_stop_bar": 4.5},
    )
    (start,) = json.loads((run / "run.json").read_text())["starts"]
    machine = {"processor": "Abacus <9>", "usable_cores": 2.0, "gpus": ["Loom"]}
    start |= {"command": "asyncrl train dqn --seed 3", "directory": "/here", "machine": machine}
    (run / "run.json").write_text(json.dumps({"starts": [start]}))
    headline = report_of_run(RunFiles(run)).partition("<fieldset")[0]
    assert "<dt>time to the bar (s)</dt><dd>4.5</dd>" in headline
    assert "On Abacus &lt;9&gt;, 2 cores, Loom<" in headline
    assert "Repeat it in /here by" in headline
    assert "asyncrl train dqn --seed 3" in headline


def test_films_of_the_run_are_shown(tmp_path: Path) -> None:
    run = made_run(tmp_path / "mine", preset("dqn"), records=RECORDS)
    assert "<video" not in report_of_run(RunFiles(run))
    (run / "<b>.mp4").write_bytes(b"film")
    (run / ".incomplete.mp4").write_bytes(b"fi")
    html = report_of_run(RunFiles(run))
    assert "&lt;b&gt;.mp4</figcaption>" in html
    assert html.count("<video") == 1
    assert 'src="data:video/mp4;base64,ZmlsbQ=="></video>' in html
    assert "media-src data:" in html
