from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from asyncrl.run.presets import preset
from asyncrl.tools.report.run_files import RunFiles
from asyncrl.tools.report.several_runs import grouped, report_of_runs
from tests.tools.report.runs import made_run


def made(path: Path, seed: int, *, actors: int, score: float) -> RunFiles:
    config = replace(preset("dqn"), seed=seed, actors=actors)
    records = [
        {
            "env_steps": 100.0 * k,
            "opt_steps": 10.0 * k,
            "wall_s": float(k),
            "eval_reward": score * k / 4,
        }
        for k in range(1, 5)
    ]
    summary = {"best_score": score, "seconds_to_stop_bar": 3.0 if score > 5 else None}
    return RunFiles(made_run(path, config, records=records, summary=summary))


def some_runs(directory: Path) -> list[RunFiles]:
    few = [made(directory / f"few-{s}", s, actors=2, score=4.0 + s) for s in range(3)]
    many = [made(directory / f"many-{s}", s, actors=4, score=10.0 + s) for s in range(2)]
    return few + many


def test_runs_that_differ_in_their_seed_are_a_group(tmp_path: Path) -> None:
    groups = grouped(some_runs(tmp_path))
    assert [(group.name, len(group.runs)) for group in groups] == [("actors=2", 3), ("actors=4", 2)]


def test_page_compares_groups(tmp_path: Path) -> None:
    html = report_of_runs(some_runs(tmp_path))
    groups = html.partition("<h2>Groups</h2>")[2].partition("</table>")[0]
    cells = re.findall(r"<td [^>]*>([^<]*)</td>", groups)
    assert cells[:7] == ["actors=2", "3", "5", "mean", "4 to 6", "3", "1 of 3"]
    assert cells[7:10] == ["actors=4", "2", "10.5"]
    runs = html.partition("<h2>Runs</h2>")[2].partition("</table>")[0]
    first = re.findall(r"<td [^>]*>([^<]*)</td>", runs)[:4]
    assert first == [str(tmp_path / "few-0"), "actors=2", "ended", "4"]
    differing = html.partition("<h2>Settings that differ</h2>")[2].partition("</table>")[0]
    cells = re.findall(r"<td [^>]*>([^<]*)</td>", differing)
    rows = {cells[k]: cells[k + 1 : k + 6] for k in range(0, len(cells), 6)}
    assert rows == {"seed": ["0", "1", "2", "0", "1"], "actors": ["2", "2", "2", "4", "4"]}
    better = html.partition("Probability of improvement")[2]
    assert re.findall(r"<td [^>]*>([^<]*)</td>", better)[:3] == ["actors=2", "actors=4", "0%"]
