from __future__ import annotations

import argparse
import json
import math
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import (
    PEER_VENV,
    ROOT,
    Comparison,
    compare,
    in_turns,
    insert,
    keep,
    run_peer,
)
from benchmarks.make_table import MARKS, load, render
from benchmarks.speed import ingest, learner, race
from tests.support import warm

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
    options = ["--results", str(results), *map(str, arguments)]
    module = f"benchmarks.speed.{script}"
    fresh = script == "ingest"  # it spawns processes, which a forked one cannot
    done = warm.run("module", [module, *options], cwd=ROOT, timeout_s=DEADLINE_S, fresh=fresh)
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


def test_most_rounds_without_an_end_leave_no_ratio():
    rounds = {"a": [math.inf, math.inf, 3.0], "b": [math.inf, 1.0, 1.0]}
    compared = compare(rounds, "a", "b", what="a / b", unit="s")
    assert (compared.ours, compared.ratio) == (None, None)


def test_the_table_replaces_the_one_before():
    result = {**ORIGIN, "name": "x", "comparisons": [asdict(a_comparison(0.5, None, 0.25))]}
    page = insert(f"above\n{MARKS[0]}\nold\n{MARKS[1]}\nbelow", render([result]), MARKS)
    assert "| a / b | **0.50** | 0.25 to 0.50, 1 without, n = 3 | 1.5 | not reached | s |" in page
    assert "a processor, 2 cores" in page
    assert "old" not in page
    assert page.startswith("above")
    assert page.endswith("below")
    assert insert(page, render([result]), MARKS) == page


@pytest.mark.processes
def test_a_peer_that_fails_is_named_with_its_error():
    with pytest.raises(
        RuntimeError, match=r"(?s)peers.no_such_peer ended with 1, saying:.*No module named"
    ):
        run_peer(Path(sys.executable), "no_such_peer")


@pytest.mark.processes
@pytest.mark.skipif(not PEER_VENV.exists(), reason="benchmarks/peers/make_venv.sh was not run")
def test_the_peer_reports_its_speed():
    printed = run_peer(PEER_VENV / "bin" / "python", "sb3", ["sampling", "--seconds", 0.05])
    assert printed["value"] > 0
    assert printed["settings"]["threads"] == 1


@pytest.mark.processes
def test_sampling_is_compared_with_the_bare_loop(tmp_path):
    small = ["--envs-per-actor", 4, "--seconds", 0.2, "--repeats", 1, "--venv", tmp_path / "none"]
    result = run("sampling", tmp_path, "--cases", "native", *small)
    assert [c["what"] for c in result["comparisons"]] == [
        "2 actors of 4 native CartPoles / bare loop on 2 processes",
    ]
    assert all(c["ratio"] > 0 for c in result["comparisons"])


@pytest.mark.processes
def test_learner_is_measured_while_experience_comes_in() -> None:
    args = argparse.Namespace(capacity=1000, seconds=1.0, threads=1)
    load = ingest.loads_of_agent("dqn", args)["loaded"]
    assert ingest.measure_beside(load).opt_steps > 0


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("kind", ["dqn", "cartpole"])
def test_learner_is_compared_with_itself_alone(tmp_path: Path, kind: str) -> None:
    small = ["--kind", kind, "--capacity", 1000, "--seconds", 0.3, "--repeats", 1]
    result = run("ingest", tmp_path, *small)
    assert all(c["ratio"] > 0 for c in result["comparisons"])
    assert all(stored[0] > 0 for stored in result["details"]["transitions_per_s"].values())


@pytest.mark.processes
def test_actors_are_raced_against_one_process(tmp_path: Path) -> None:
    result = run("race", tmp_path, "--seeds", 1, "--max-seconds", 2)
    assert [c["unit"] for c in result["comparisons"]] == ["s", "env steps/s", "opt steps/s"]
    assert [run["side"] for run in result["details"]["runs"]] == ["asyncrl", "sync"]
    assert all("2" in run["stop_reason"] for run in result["details"]["runs"])


def test_trainings_that_are_done_are_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[tuple[int, bool]] = []

    def train(_: object, seed: int, _max_s: float, options: list[str]) -> dict[str, Any]:
        trained.append((seed, "sync" in options))
        wall_s = 8.0 if "sync" in options else 4.0
        return {"seconds": seed - 98.0, "env_steps": 10, "opt_steps": 5, "wall_s": wall_s}

    monkeypatch.setattr(race, "train_ours", train)
    for number in ("1", "2"):
        argv = ["race", "--seeds", number, "--results", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", argv)
        race.main()
    assert trained == [(100, False), (100, True), (101, False), (101, True)]
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {c["unit"]: c["ratio"] for c in result["comparisons"]} == {
        "s": 1.0,
        "env steps/s": 2.0,
        "opt steps/s": 2.0,
    }


def test_a_result_that_is_replaced_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = argparse.Namespace(results=tmp_path, repeats=1)
    for date, ratio in (("2030-01-02", 0.5), ("2030-02-03", 0.25)):
        keep(args, "x", "?", [a_comparison(ratio)], origin={**ORIGIN, "date": date})
    read = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert json.loads((tmp_path / "x.json").read_text()) == read[1]
    older = tmp_path / "replaced" / "x_2030-01-02_abc1234.json"
    assert json.loads(older.read_text()) == read[0]
    assert load(tmp_path) == [read[1]]
    machine = {**read[0]["machine"], "processor": "another processor"}
    older.write_text(json.dumps({**read[0], "machine": machine}))
    assert [r["date"] for r in load(tmp_path)] == ["2030-02-03", "2030-01-02"], "one of each"
    (tmp_path / "x.json").unlink()
    assert load(tmp_path) == [], "what is no longer measured is no longer shown"


@pytest.mark.processes
def test_replay_is_compared_with_bare_selection(tmp_path: Path) -> None:
    small = ["--rows", 512, "--frames", 64, "--batch-size", 8, "--seconds", 0.01, "--repeats", 2]
    result = run("replay", tmp_path, *small, "--peers", tmp_path)
    assert [c["what"] for c in result["comparisons"]] == [
        "sample 8 of 512 transitions / torch.index_select of as many bytes",
        "sample 8 of 64 frames / torch.index_select of as many bytes",
        "90 % of samples of 8 transitions beside a pushing thread / at rest",
        "90 % of samples of 8 frames beside a pushing thread / at rest",
        "sample 8 of 512 transitions with hindsight / uniformly",
    ]
    assert all(len(c["ratios"]) == 2 and c["ratio"] > 0 for c in result["comparisons"])


@pytest.mark.processes
def test_learner_is_compared_with_its_limit_and_its_variants(tmp_path: Path) -> None:
    small = ["--cases", "dqn", "--variants", "bfloat16", "--seconds", 0.02, "--repeats", 1]
    result = run("learner", tmp_path, *small)
    words = learner.CASES["dqn"].words
    shown = [c["what"] for c in result["comparisons"] if c["other"] != 0]
    assert f"{words}: {learner.SAMPLED} / {learner.FIXED}" in shown
    assert f"{words}: {learner.FIXED} / {learner.PRODUCTS}" in shown
    assert f"{words}: bfloat16 / {learner.SAMPLED}" in shown


def test_parity_is_nothing_between_the_same_and_something_between_precisions() -> None:
    case = replace(learner.CASES["dqn"], replay_rows=2000)
    apart = learner.measure_parity(case, ["", "bfloat16"], "cpu", 3)
    assert apart[""] == [0.0]
    assert apart["bfloat16"][0] > 0.0


@pytest.mark.processes
@pytest.mark.gpu
def test_learner_is_measured_on_a_gpu(tmp_path: Path) -> None:
    small = ["--cases", "dqn", "--variants", "graphs", "--seconds", 0.2, "--repeats", 1]
    result = run("learner", tmp_path, "--device", "cuda", *small)
    assert {c["unit"] for c in result["comparisons"]} == {"opt steps/s", "batches/s"}
    apart = result["details"]["dqn: largest relative difference from plain updates"]
    assert apart["graphs"][0] < 1e-3


def test_pace_is_kept_by_naps_and_who_is_late_catches_up_with_a_tenth_of_a_second() -> None:
    pace, now, naps = ingest.Pace(1000.0), 50.0, []
    for _ in range(5000):
        naps.append(pace.nap_s(now))
        now += naps[-1] + 0.0001
    assert now - 50.0 == pytest.approx(5.0 - 0.1, abs=0.01), "it began 0.1 s late"
    assert min(nap for nap in naps if nap) > 0.002
    assert naps.count(0.0) > len(naps) / 2


@pytest.mark.processes
def test_time_of_an_open_dashboard_is_counted() -> None:
    module = ["benchmarks.speed.dashboard", "--seconds", "1"]
    done = warm.run("module", module, cwd=ROOT, timeout_s=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    found = re.search(r"([\d.]+) s of CPU time in .* cores: .*%.*, for (\d+) updates", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) > 0
    assert int(found[2]) > 0, "the client has seen the end at least"
