"""Progress in a terminal and in a log file, and the closing summary."""

from __future__ import annotations

import io
import os
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from asyncrl.recorders.terminal import ProgressConsole, TerminalRecorder, render_summary

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"

FIRST = {"env_steps": 100.0, "opt_steps": 0.0, "wall_s": 1.2, "fps": 95.4}
EVALUATION = {
    "env_steps": 47_000.0,
    "opt_steps": 11_900.0,
    "wall_s": 11.7,
    "eval_reward": 201.0,
    "eval/best": 205.5,
}
LATER = {
    "env_steps": 48_100.0,
    "opt_steps": 12_000.0,
    "wall_s": 12.2,
    "fps": 3921.0,
    "episode/return_mean": 132.43,
}

SUMMARY = {
    "stop_reason": "an evaluation reached 475 (482.1)",
    "wall_s": 743.2,
    "env_steps": 481_233,
    "opt_steps": 12_000,
    "env_steps_per_s": 647.3,
    "opt_steps_per_s": 16.2,
    "best_score": 482.1,
    "seconds_to_stop_bar": 120.2,
    "learner_shares": {"opt": 0.3, "wait": 0.6, "other": 0.1, "save": 0.0},
    "actor_shares": {"env": 0.7, "policy": 0.3},
    "verdict": {"kind": "learner-bound", "sentence": "learner-bound: actors wait 60 %"},
    "ledger": {"produced": 48_123, "stored": 48_000, "dropped": 0, "lost": 12, "in_flight": 111},
    "run_dir": "runs/dqn",
}


NOW = 1_790_000_000.0


def untimed(text: str) -> list[str]:
    """Return lines without their clock times, which are all the same here."""
    lines = [line.split(" ", 1) for line in text.splitlines()]
    assert {datetime.fromisoformat(stamp).timestamp() for stamp, _ in lines} == {NOW}
    return [line for _, line in lines]


def file_console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=40), out


def terminal_console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="truecolor", width=80, height=24)
    return console, out


def run(console: Console, *, failed: bool = False) -> None:
    recorder = TerminalRecorder(
        console, limits={"env_steps": 50_000}, line_interval_s=0.0, clock=lambda: NOW
    )
    recorder.start({})
    for record in (FIRST, EVALUATION, LATER):
        recorder.write(record)
    recorder.close(failed=failed)


def test_record_is_one_plain_line_where_there_is_no_terminal() -> None:
    console, out = file_console()
    run(console)
    assert untimed(out.getvalue()) == [
        "     1 s | env 100 | opt 0 | fps 95.4/s",
        "    12 s | env 47.0 k | opt 11.9 k | fps 95.4/s | eval 201.0 (best 205.5)",
        "    12 s | env 48.1 k | opt 12.0 k | fps 3.9 k/s | return 132.4 | eval 201.0 (best 205.5)",
    ]


def test_lines_come_once_a_minute_first_last_and_evaluations_aside() -> None:
    console, out = file_console()
    recorder = TerminalRecorder(console, clock=lambda: NOW)
    recorder.start({})
    for wall_s in range(200):
        evaluated = {"eval_reward": 1.0} if wall_s in {5, 80, 85, 95, 160} else {}
        recorder.write({"wall_s": float(wall_s), "opt_steps": float(wall_s)} | evaluated)
    recorder.close(failed=False)
    lines = untimed(out.getvalue())
    shown = [line.split(" | ")[1] for line in lines]
    assert shown == [f"opt {n}" for n in [0, 60, 80, 95, 155, 199]]


def test_plain_lines_also_where_the_terminal_cannot_move_its_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console, out = terminal_console()
    run(console)
    assert len(out.getvalue().splitlines()) == 3
    assert "\x1b[" not in out.getvalue()


def test_last_frame_stays_and_the_cursor_comes_back() -> None:
    console, out = terminal_console()
    run(console)
    text = out.getvalue()
    assert text.index(HIDE_CURSOR) < text.rindex(SHOW_CURSOR)
    last = text[text.rindex("env steps/s") :]
    assert "3.9 k" in last
    assert "done" in text[text.rindex("96 %") :]


@pytest.mark.behaviour(number=63)
def test_frame_of_a_failed_run_shows_the_failure() -> None:
    console, out = terminal_console()
    run(console, failed=True)
    text = out.getvalue()
    assert "failed" in text[text.rindex("96 %") :]


def test_what_is_printed_meanwhile_stands_above_the_frame() -> None:
    console, out = terminal_console()
    recorder = TerminalRecorder(console)
    recorder.start({})
    recorder.write(FIRST)
    before = len(out.getvalue())
    console.print("a warning")
    printed = out.getvalue()[before:]
    recorder.close(failed=False)
    assert printed.index("\x1b[2K") < printed.index("a warning") < printed.index("env steps/s")


def test_reader_that_goes_away_leaves_a_warning_and_other_output_alone(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as file:
        recorder = TerminalRecorder(ProgressConsole(file=file))
        recorder.start({})
        recorder.write(FIRST)
        recorder.write(LATER)
        recorder.close(failed=False)
        with pytest.raises(BrokenPipeError):
            file.flush()
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), file.fileno())
    assert [record.message for record in caplog.records] == [
        "standard output was closed, so progress is no longer shown; the run continues"
    ]
    os.write(1, b"still there")
    assert capfd.readouterr().out == "still there"


def test_summary_says_how_it_went_and_where_the_results_are() -> None:
    assert render_summary(SUMMARY).splitlines() == [
        "run ended: an evaluation reached 475 (482.1)",
        "  score      482.1",
        "  time       12 m 23 s, score reached after 2 m 00 s",
        "  env steps  481.2 k (647/s)",
        "  opt steps  12.0 k (16.2/s)",
        "  learner    wait 60 %, opt 30 %, other 10 %",
        "  actors     env 70 %, policy 30 %",
        "  verdict    learner-bound: actors wait 60 %",
        "  ledger     produced 48.1 k = stored 48.0 k + dropped 0 + lost 12 + in flight 111",
        "  results    runs/dqn",
        "  report     asyncrl report runs/dqn",
    ]


ROW = {
    "env_steps": 48_100,
    "env_steps_per_s": 812.0,
    "wait_share": 0.25,
    "episodes": 96,
    "restarts": 2,
    "dropped": 1,
}


@pytest.mark.behaviour(number=56)
@pytest.mark.behaviour(number=63)
def test_summary_shows_what_each_actor_did() -> None:
    other = {**ROW, "env_steps": 7, "restarts": 0, "dropped": 0}
    lines = render_summary({"actors": {"0": ROW, "10": other}, "run_dir": "runs/x"}).splitlines()
    assert [line.split() for line in lines[-5:-2]] == [
        ["actor", "env", "steps", "steps/s", "waiting", "episodes", "restarts"],
        ["0", "48.1", "k", "812", "25", "%", "96", "2,", "given", "up"],
        ["10", "7", "812", "25", "%", "96", "0"],
    ]
    assert lines[-2] == "  results    runs/x"
