"""`asyncrl bench`: flags, exit codes, what is printed, saved and compared, and Ctrl-C."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from asyncrl.cli import bench as bench_command
from asyncrl.cli.main import main
from asyncrl.core.errors import AsyncRLError
from asyncrl.tools.bench import stages as stages_module
from asyncrl.tools.bench.result import load_results, save_results
from asyncrl.tools.bench.stages import STAGES
from tests.cli.console import started
from tests.tools.bench.sample_results import FakeStage, a_quantity, a_result


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[FakeStage]:
    """Two stages whose numbers are known, in the place of all real ones."""
    stages = [
        FakeStage([[90.0], [80.0]], [[100.0], [100.0]], [a_quantity(stage="env")]),
        FakeStage([[40.0], [50.0]], [[100.0], [100.0]]),
    ]
    monkeypatch.setattr(stages_module, "make_stages", lambda _name, _workload, **_: iter(stages))
    return stages


def test_saved_results_are_those_that_were_printed(
    fakes: list[FakeStage], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "all", "--repeats", "2", "--json", "--save", str(tmp_path / "x")]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == json.loads((tmp_path / "x").read_text())
    assert [p["ratio"] for p in printed] == [pytest.approx(0.85), pytest.approx(0.45)]
    assert all(stage.closed for stage in fakes)


@pytest.mark.processes
def test_environments_are_measured_without_actors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--quick --seconds 0.05 --warm-up-seconds 0.01 --repeats 1 --envs-per-actor 2".split()
    assert main(["bench", "env", *flags, "--save", str(tmp_path / "x")]) == 0
    (result,) = load_results(tmp_path / "x")
    assert (result.stage, result.ratio > 0) == ("env", True)
    assert capsys.readouterr().out.splitlines()[-1].startswith("env ")


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
    ("before", "flags", "code"), [(48.0, "", 0), (52.0, "--json", 1), (52.0, "--tolerance 0.2", 0)]
)
def test_a_ratio_that_got_worse_than_the_baseline_is_a_failure(
    before: float, flags: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "baseline.json"
    save_results([a_result((before, 100.0))], baseline)
    argv = f"bench sample --repeats 2 --compare {baseline} {flags}"
    assert main(argv.split()) == code
    out, err = capsys.readouterr()
    if "--json" in flags:
        assert all(json.loads(line) for line in out.splitlines())
    shown = err if "--json" in flags else out
    assert f"compared with {baseline}:" in shown
    assert ("worse by more than 10%: sample, CartPole-v1" in shown) == bool(code)
    assert "new: env, CartPole-v1, agent steps/s is not in the baseline" in shown


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
def test_interruption_ends_with_what_was_measured_so_far(tmp_path: Path) -> None:
    flags = "--seconds 0.2 --warm-up-seconds 0 --envs-per-actor 2 --actors 1 --capacity 2000"
    with started("bench", "all", *flags.split(), "--json", "--save", "x", cwd=tmp_path) as bench:
        assert bench.stdout is not None
        first = bench.stdout.readline()
        bench.send_signal(signal.SIGTERM)
        out, err = bench.communicate(timeout=60)
    assert bench.returncode == 128 + signal.SIGTERM
    assert "interrupted; these are the results of complete rounds" in err
    assert "Traceback" not in err
    saved = json.loads((tmp_path / "x").read_text())
    assert saved == [json.loads(line) for line in [first, *out.splitlines()]]
    assert len(saved) < len(STAGES)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("", "STAGE is missing"),
        ("speed", "STAGE: expected one of 'env', 'sample'"),
        ("env --repeats 0", "--repeats must be at least 1, got 0"),
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
