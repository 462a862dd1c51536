from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import PEER_VENV, ROOT, Comparison, compare, in_turns, run_peer, save
from benchmarks.make_table import BEGIN, END, insert, render

DEADLINE_S = 100

ORIGIN = {
    "date": "2030-01-02",
    "commit": "abc1234",
    "load_before": 0.25,
    "machine": {
        "processor": "a processor",
        "cores": 2,
        "platform": "Linux",
        "python": "3.11",
        "torch": "2",
        "numpy": "2",
        "gymnasium": "1",
    },
}


def run(script: str, results: Path, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", f"benchmarks.{script}", "--results", str(results)]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    assert json.loads((results / f"{printed['name']}.json").read_text()) == printed
    return printed


def a_comparison(*ratios: float | None) -> Comparison:
    return Comparison(
        what="a / b", unit="s", ours=1.5, other=None, ratio=ratios[0], ratios=[*ratios]
    )


def test_measurements_are_taken_in_turns():
    taken: list[str] = []

    def measure(name: str) -> float:
        taken.append(name)
        return float(len(taken))

    rounds = in_turns({"a": lambda: measure("a"), "b": lambda: measure("b")}, 2)
    assert taken == ["a", "b", "a", "b"]
    assert rounds == {"a": [1.0, 3.0], "b": [2.0, 4.0]}


def test_the_ratio_is_the_median_of_the_rounds_ratios():
    rounds = {"a": [1.0, 10.0, 4.0], "b": [1.0, 40.0, 2.0]}
    compared = compare(rounds, "a", "b", what="a / b", unit="s")
    assert compared.ratios == [1.0, 0.25, 2.0]
    assert compared.ratio == 1.0  # the ratio of the medians would be 2
    assert (compared.ours, compared.other) == (4.0, 2.0)


def test_rounds_without_a_pair_are_compared_by_their_medians():
    rounds = {"a": [1.0, 10.0, 4.0], "b": [1.0, 40.0, 2.0]}
    assert compare(rounds, "a", "b", what="a / b", unit="s", paired=False).ratio == 2.0


def test_a_round_that_never_got_there_counts_as_the_worst():
    rounds = {"a": [math.inf, 2.0, 3.0], "b": [1.0, 1.0, 1.0]}
    compared = compare(rounds, "a", "b", what="a / b", unit="s")
    assert compared.ratios == [None, 2.0, 3.0]
    assert (compared.ours, compared.ratio) == (3.0, 3.0)


def test_most_rounds_without_an_end_leave_no_ratio(tmp_path):
    rounds = {"a": [math.inf, math.inf, 3.0], "b": [math.inf, 1.0, 1.0]}
    compared = compare(rounds, "a", "b", what="a / b", unit="s")
    assert compared.ratio is None
    path = save(tmp_path, "x", question="?", settings={}, comparisons=[compared], origin=ORIGIN)
    assert json.loads(path.read_text())["comparisons"][0]["ours"] is None


def test_the_table_replaces_the_one_before():
    result = {**ORIGIN, "name": "x", "comparisons": [asdict(a_comparison(0.5, None, 0.25))]}
    page = insert(f"above\n{BEGIN}\nold\n{END}\nbelow", render([result]))
    assert "| a / b | **0.50** | 0.25 to 0.50, 1 without (3) | 1.5 | not reached | s |" in page
    assert "a processor, 2 cores" in page
    assert "old" not in page
    assert page.startswith("above")
    assert page.endswith("below")
    assert insert(page, render([result])) == page


def test_a_page_without_marks_is_refused():
    with pytest.raises(ValueError, match="needs the two lines"):
        insert(f"{END} {BEGIN}", "table")


def test_the_readme_has_a_place_for_the_table():
    assert "a table" in insert((ROOT / "benchmarks" / "README.md").read_text(), "a table")


def test_a_peer_that_fails_is_named_with_its_error():
    with pytest.raises(RuntimeError, match=r"(?s)peers.no_such_peer failed:.*No module named"):
        run_peer(Path(sys.executable), "no_such_peer")


@pytest.mark.skipif(not PEER_VENV.exists(), reason="benchmarks/peers/make_venv.sh was not run")
def test_the_peer_reports_its_speed():
    printed = run_peer(PEER_VENV / "bin" / "python", "sb3", ["sampling", "--seconds", 0.05])
    assert printed["value"] > 0
    assert printed["settings"]["threads"] == 1


@pytest.mark.processes
def test_sampling_is_compared_with_the_bare_loop(tmp_path):
    small = ["--envs-per-actor", 4, "--seconds", 0.2, "--repeats", 1, "--venv", tmp_path / "none"]
    result = run("bench_sampling", tmp_path, "--cases", "cartpole", "native", *small)
    assert [c["what"] for c in result["comparisons"]] == [
        "2 actors of 4 CartPoles / bare loop on 2 processes",
        "2 actors of 4 native CartPoles / bare loop on 2 processes",
    ]
    assert all(c["ratio"] > 0 for c in result["comparisons"])


@pytest.mark.processes
def test_actors_keep_up_with_the_limiter_while_the_learner_is_measured(tmp_path):
    small = ["--agent", "dqn", "--capacity", 1000, "--seconds", 1, "--repeats", 1]
    result = run("bench_learner_under_load", tmp_path, *small)
    assert result["comparisons"][0]["ratio"] > 0
    for (ratio,) in result["details"]["samples_per_insert"].values():
        assert 2.0 < ratio < 32.0  # 8 is asked for; one second is a few messages


@pytest.mark.processes
def test_trainings_that_are_done_are_not_done_again(tmp_path):
    small = ["--max-seconds", 1, "--venv", tmp_path / "none", "--", "--envs-per-actor", 4]
    first = run("bench_time_to_score", tmp_path, "--seeds", 1, *small)
    again = run("bench_time_to_score", tmp_path, "--seeds", 2, *small)
    runs = again["details"]["runs"]
    assert [(run["side"], run["seed"]) for run in runs] == [("asyncrl", 0), ("asyncrl", 1)]
    assert runs[0] == first["details"]["runs"][0]
