"""`asyncrl bench sample`: throughput and its limit, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncrl.benchmarking import SampleResult
from asyncrl.cli.bench_command import parse, render
from tests.cli.console import run


@pytest.mark.processes
def test_json_tells_throughput_limit_and_ratio(tmp_path: Path) -> None:
    flags = "--seconds 0.5 --repeats 1 --actors 1 --json".split()
    done = run("bench", "sample", *flags, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    shown = json.loads(line)
    assert shown["env_steps_per_s"] > 0
    assert shown["limit_env_steps_per_s"] > 0
    assert shown["ratio"] == shown["env_steps_per_s"] / shown["limit_env_steps_per_s"]
    assert len(shown["repeats"]) == 1
    assert {"processor", "cores", "torch"} <= set(shown["machine"])
    assert not list(tmp_path.iterdir()), "measuring leaves no files"


def test_people_read_three_lines_of_numbers() -> None:
    result = SampleResult(
        env="CartPole-v1",
        actors=2,
        envs_per_actor=64,
        env_steps_per_s=90_000.4,
        limit_env_steps_per_s=120_000.0,
        ratio=0.75,
        repeats=[{}, {}, {}],
    )
    assert render(result).splitlines() == [
        "CartPole-v1, 2 actors of 64 environments, median of 3",
        "  into replay         90,000 env steps/s",
        "  bare loop          120,000 env steps/s",
        "  ratio                75.0%",
    ]


def test_flags_are_read() -> None:
    arguments = parse("sample --env Pendulum-v1 --actors 3 --segment-length 8".split())
    assert (arguments.env, arguments.actors, arguments.segment_length) == ("Pendulum-v1", 3, 8)


@pytest.mark.parametrize("argv", [["--help"], ["sample", "--help"]])
def test_help_is_no_error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert not ended.value.code
    assert "--seconds" in capsys.readouterr().out
