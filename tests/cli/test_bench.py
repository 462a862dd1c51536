"""`asyncrl bench`: flags, exit codes, what is printed, saved and compared, and Ctrl-C."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from asyncrl.bench import stages as stages_module
from asyncrl.bench.result import load_results, save_results
from asyncrl.bench.stages import STAGES
from asyncrl.cli import bench as bench_command
from asyncrl.cli.bench import parse
from asyncrl.cli.main import main
from asyncrl.core.errors import AsyncRLError
from tests.bench.sample_results import FakeStage, a_quantity, a_result
from tests.cli.console import hears, run, started
from tests.support.helpers import wait_until
from tests.test_architecture import loaded_by

TINY = "--seconds 0.05 --warm-up-seconds 0.01 --repeats 1 --envs-per-actor 2".split()


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[FakeStage]:
    """Two stages whose numbers are known, in the place of all real ones."""
    stages = [
        FakeStage([[90.0], [80.0]], [[100.0], [100.0]], [a_quantity(stage="env")]),
        FakeStage([[40.0], [50.0]], [[100.0], [100.0]]),
    ]
    monkeypatch.setattr(stages_module, "make_stages", lambda _name, _workload, **_: iter(stages))
    return stages


def test_people_read_a_table_of_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "env", *TINY]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    last = shown.out.splitlines()[-1]
    assert last.startswith("env    CartPole-v1  ")
    assert "agent steps/s" in last


@pytest.mark.processes
def test_json_reports_value_limit_and_ratio(tmp_path: Path) -> None:
    done = run("bench", "sample", *TINY, "--actors", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "learned nothing" not in done.stderr, "it was not there to learn"
    line, served = done.stdout.splitlines()
    assert json.loads(served)["case"] == "inference server"
    shown = json.loads(line)
    assert (shown["stage"], shown["env"], shown["unit"]) == (
        "sample",
        "CartPole-v1",
        "agent steps/s",
    )
    assert shown["value"] > 0
    assert shown["limit"] > 0
    assert shown["ratio"] == shown["value"] / shown["limit"]
    assert shown["frames_per_s"] == shown["value"]
    assert len(shown["repeats"]) == 1
    assert shown["settings"]["actors"] == 1
    assert {"processor", "cores", "torch"} <= set(shown["machine"])
    assert not list(tmp_path.iterdir()), "measuring leaves no files"


@pytest.mark.processes
def test_quick_smoke_of_every_stage(tmp_path: Path) -> None:
    flags = ["--quick", *TINY, "--actors", "1", "--capacity", "2000", "--save", "all.json"]
    done = run("bench", "all", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = load_results(tmp_path / "all.json")
    assert list(dict.fromkeys(result.stage for result in results)) == list(STAGES)
    assert all(result.ratio > 0 for result in results)
    table = done.stdout.splitlines()[-len(results) :]
    assert all(line.startswith(r.name) for line, r in zip(table, results, strict=True))


def test_saved_results_are_those_that_were_printed(
    fakes: list[FakeStage], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "all", "--repeats", "2", "--json", "--save", str(tmp_path / "x")]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == json.loads((tmp_path / "x").read_text())
    assert [p["ratio"] for p in printed] == [pytest.approx(0.85), pytest.approx(0.45)]
    assert all(stage.closed for stage in fakes)


@pytest.mark.usefixtures("fakes")
def test_results_are_printed_though_they_cannot_be_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fills_up(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bench_command, "save_results", fills_up)
    assert main(["bench", "all", "--repeats", "2", "--save", str(tmp_path / "x")]) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-2].startswith("env ")
    assert "No space left on device" in shown.err


def test_place_to_save_to_is_looked_at_before_anything_is_measured(
    fakes: list[FakeStage],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "all", "--save", str(tmp_path)]) == 2
    assert "is a directory; name a file" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda *_: False)  # which root may do anywhere
    assert main(["bench", "all", "--save", str(tmp_path / "x")]) == 2
    assert "is not writable" in capsys.readouterr().err
    assert not any(stage.closed for stage in fakes)


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(
    ("before", "flags", "code"),
    [(45.0, "", 0), (48.0, "", 0), (52.0, "", 1), (52.0, "--tolerance 0.2", 0)],
)
def test_a_ratio_that_got_worse_than_the_baseline_is_a_failure(
    before: float, flags: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "baseline.json"
    save_results([a_result((before, 100.0))], baseline)
    argv = f"bench sample --repeats 2 --compare {baseline} {flags}"
    assert main(argv.split()) == code
    shown = capsys.readouterr().out
    assert f"compared with {baseline}:" in shown
    assert ("worse by more than 10%: sample, CartPole-v1" in shown) == bool(code)
    assert "new: env, CartPole-v1, agent steps/s is not in the baseline" in shown


def test_what_was_saved_can_be_compared_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = str(tmp_path / "x")
    assert main(["bench", "env", *TINY, "--save", baseline]) == 0
    assert main(["bench", "env", *TINY, "--compare", baseline, "--tolerance", "1e9"]) == 0
    assert "nothing got worse by more than" in capsys.readouterr().out


def test_wrong_flags_and_help_load_no_torch() -> None:
    assert "torch" not in loaded_by("asyncrl.cli.bench")


@pytest.mark.usefixtures("fakes")
def test_comparison_keeps_out_of_the_way_of_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_results([a_result((99.0, 100.0))], tmp_path / "b")
    assert main(["bench", "all", "--repeats", "2", "--json", "--compare", f"{tmp_path}/b"]) == 1
    shown = capsys.readouterr()
    assert all(json.loads(line) for line in shown.out.splitlines())
    assert "WORSE" in shown.err


def test_a_stage_that_fails_does_not_take_the_others_results_with_it(
    fakes: list[FakeStage],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stages(_name: str, _workload: object) -> Iterator[FakeStage]:
        yield fakes[0]
        raise AsyncRLError("the second stage is broken")

    monkeypatch.setattr(stages_module, "make_stages", stages)
    assert main(["bench", "all", "--repeats", "2", "--save", str(tmp_path / "x")]) == 1
    shown = capsys.readouterr()
    assert "env    CartPole-v1" in shown.out
    assert "asyncrl: error: the second stage is broken" in shown.err
    assert [result.stage for result in load_results(tmp_path / "x")] == ["env"]


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_ends_with_what_was_measured_so_far(
    number: signal.Signals, tmp_path: Path
) -> None:
    flags = "--seconds 0.2 --warm-up-seconds 0 --envs-per-actor 2 --actors 1 --capacity 2000"
    with started("bench", "all", *flags.split(), "--json", "--save", "x", cwd=tmp_path) as bench:
        assert bench.stdout is not None
        first = bench.stdout.readline()
        bench.send_signal(number)
        out, err = bench.communicate(timeout=60)
    assert bench.returncode == 128 + number
    assert "interrupted; these are the results of complete rounds" in err
    assert "Traceback" not in err
    saved = json.loads((tmp_path / "x").read_text())
    assert saved == [json.loads(line) for line in [first, *out.splitlines()]]
    assert len(saved) < len(STAGES)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.processes
def test_interruption_before_anything_is_measured_says_so(tmp_path: Path) -> None:
    flags = "--seconds 60 --envs-per-actor 2 --save x --debug".split()
    with started("bench", "env", *flags, cwd=tmp_path) as bench:
        wait_until(lambda: hears(bench.pid), 30.0, "the signal's handler")
        bench.send_signal(signal.SIGINT)
        out, err = bench.communicate(timeout=60)
    assert (bench.returncode, out) == (130, "")
    assert err == "asyncrl: interrupted by SIGINT\n"
    assert not list(tmp_path.iterdir())


def test_flags_are_read() -> None:
    argv = "sample --env Pendulum-v1 --actors 3 --segment-length 8 --env-kwargs g 9.8 x True"
    bench = parse(argv.split()).bench
    assert (bench.env, bench.actors, bench.segment_length) == ("Pendulum-v1", 3, 8)
    assert bench.env_kwargs == {"g": 9.8, "x": True}


def test_quick_changes_defaults_only() -> None:
    usual, quick = parse(["all"]).bench, parse(["all", "--quick"]).bench
    assert quick.seconds < usual.seconds
    assert quick.capacity < usual.capacity
    assert quick.repeats < usual.repeats
    assert parse(["all", "--quick", "--seconds", "7"]).bench.seconds == 7.0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            "",
            "name a stage to measure: asyncrl bench env|sample|learner|train|all",
        ),
        ("--quick", "name a stage to measure"),
        ("speed", "'speed' is not a stage to measure: asyncrl bench env|"),
        ("env --repeats 0", "--repeats must be at least 1, got 0"),
        ("env --tolerance -1", "--tolerance must be 0 or more, got -1"),
        ("env --compare no-such-file", "no-such-file holds no results"),
        ("env --save no/such/directory/x.json", "the directory no/such/directory does not exist"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_measured(
    argv: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *argv.split()]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert not shown.out


@pytest.mark.parametrize("argv", [["--help"], ["sample", "--help"]])
def test_help_is_no_error(argv: list[str], capsys: pytest.CaptureFixture[Any]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert not ended.value.code
    assert "--seconds" in capsys.readouterr().out
