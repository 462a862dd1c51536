"""The live view, progress lines where there is no terminal, and the closing summary.

Computes no metrics; `dashboard.py` defines the frame of the live view.
"""

from __future__ import annotations

import logging
import math
import shlex
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from asyncrl.core.recorder import CLOCK_TIME, Record
from asyncrl.metrics.verdict import Setup, shortfall
from asyncrl.recorders.dashboard import Dashboard, ledger_line
from asyncrl.recorders.run_state import RunState, count, duration, fault_phrases, measure, percent

_LINE_INTERVAL_S = 60.0
_EVALUATION_INTERVAL_S = 10.0
_VERDICT_INTERVAL_S = 30.0

logger = logging.getLogger(__name__)


class ProgressConsole(Console):
    """A console that goes silent when its reader is gone, as after `| head`."""

    def on_broken_pipe(self) -> None:
        """Warn once. Without this, rich would end the thread and replace `sys.stdout`."""
        self.quiet = True
        logger.warning(
            "standard output was closed, so progress is no longer shown; the run continues"
        )


class TerminalRecorder:
    """Shows the progress of a run.

    In a terminal, one frame is redrawn in place with each record. What is printed through the same
    console, or to `sys.stdout` and `sys.stderr`, appears above it. Elsewhere, as in a log file,
    records become plain lines: the first and the last record, one per `line_interval_s`, and
    evaluations that come 10 s or more after the previous line. Another line names the bottleneck,
    at most twice a minute. Lines begin with the clock time. Metrics that a record lacks keep their
    values.

    Args:
        console: Where to draw; standard output by default.
        limits: Metrics and the values at which the run stops, such as `{"env_steps": 50_000}`;
            the bar shows the one that is nearest.
        target: A metric and the value at which the run stops, such as `("eval_reward", 475.0)`.
        setup: The run's setup, for the sentence about its bottleneck. None takes from the records
            what they contain.
        line_interval_s: Seconds between two lines; 0 prints each record.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        limits: Mapping[str, float] | None = None,
        target: tuple[str, float] | None = None,
        setup: Setup | None = None,
        line_interval_s: float = _LINE_INTERVAL_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._console = console or ProgressConsole()
        self._state = RunState(limits or {}, target, setup)
        self._live: Live | None = None
        self._line_interval_s = line_interval_s
        self._printed_at_s = -math.inf
        self._is_printed = True
        self._judged_at_s = 0.0

    def resume_at(self, *, env_steps: int, opt_steps: int) -> None:
        self._state.resume_at(env_steps=env_steps, opt_steps=opt_steps)

    def start(self, config: Mapping[str, object]) -> None:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            # Redrawn with each record only: no thread, no flicker.
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()

    def write(self, record: Record) -> None:
        self._state.update(record)
        if self._live is not None:
            self._live.update(Dashboard(self._state), refresh=True)
            return
        self._is_printed = False
        interval_s = self._line_interval_s
        if "eval_reward" in record:
            interval_s = min(interval_s, _EVALUATION_INTERVAL_S)
        if self._state.wall_s - self._printed_at_s >= interval_s:
            self._print_state()
            self._judge()

    def _print_state(self) -> None:
        self._print(_plain_line(self._state))
        self._printed_at_s, self._is_printed = self._state.wall_s, True

    def _print(self, line: str) -> None:
        line = f"{time.strftime(CLOCK_TIME, time.localtime(self._clock()))} {line}"
        self._console.print(Text(line, overflow="ignore", no_wrap=True), soft_wrap=True)

    def _judge(self) -> None:
        """Print the bottleneck if it is due."""
        due = self._state.wall_s - self._judged_at_s >= _VERDICT_INTERVAL_S
        if due and (verdict := self._state.verdict) and verdict.kind != "too-early":
            self._judged_at_s = self._state.wall_s
            self._print(f"{'':>8} | {verdict.sentence}")

    def close(self, *, failed: bool) -> None:
        """Leave the last frame on the screen and restore the cursor, or print the last record."""
        if not self._is_printed:
            self._print_state()
        if self._live is not None:
            live, self._live = self._live, None
            self._state.finish("failed" if failed else "done")
            live.stop()


def render_summary(summary: Mapping[str, Any]) -> str:
    """Format the summary of a run as a few lines of plain text; unknown values are left out.

    Takes the run's summary, with `run_dir`, the directory of its results.
    """
    rows = {
        "score": _score(summary),
        "time": _time(summary),
        "env steps": _steps(summary, "env"),
        "opt steps": _steps(summary, "opt"),
        "samples": shortfall(
            (summary.get("setup") or {}).get("samples_per_insert"),
            summary.get("samples_per_insert"),
        ),
        "learners": _learners(summary.get("setup") or {}),
        "learner": _shares(summary.get("learner_shares")),
        "actors": _shares(summary.get("actor_shares")),
        "verdict": (summary.get("verdict") or {}).get("sentence", ""),
        "ledger": ledger_line(summary["ledger"]) if summary.get("ledger") else "",
        "faults": _faults(summary),
        "hosts": "; ".join(map(_host, (summary.get("hosts") or {}).items())),
    }
    lines = [f"run ended: {summary.get('stop_reason', 'unknown')}"]
    lines += [f"  {name:<10} {text}" for name, text in rows.items() if text]
    lines += _actor_table(summary.get("actors") or {})
    if run_dir := summary.get("run_dir"):
        lines.append(f"  results    {run_dir}")
        lines.append(f"  report     asyncrl report {shlex.quote(str(run_dir))}")
    return "\n".join(lines)


def _learners(setup: Mapping[str, Any]) -> str:
    several = setup.get("learners", 1)
    return f"{several}; returns, times, actors and verdict are of rank 0" if several > 1 else ""


def _host(item: tuple[str, Mapping[str, float]]) -> str:
    name, host = item
    end = next((f", {how}" for how in ("lost", "left") if host[how]), "")
    trip_ms = 1000 * host["round_trip_s"]
    trip = f", round trip {trip_ms:.1f} ms" if trip_ms else ""
    traffic = f", {host['traffic_bytes'] / 1e6:.3g} MB" if host["traffic_bytes"] else ""
    return f"{name}: started {host['started']:.0f}, room for {host['room']:.0f}{trip}{traffic}{end}"


_MOST_ACTORS = 16
"""Actors in the table; with more, those with the fewest steps."""


def _actor_table(actors: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return what each actor did, one line for each."""
    rows = {name: row for name, row in actors.items() if "wait_share" in row}
    if not rows:
        return []
    names = ("actor", "env steps", "steps/s", "waiting", "episodes", "restarts")
    slowest = sorted(rows, key=lambda name: rows[name]["env_steps"])[:_MOST_ACTORS]
    lines = [
        (
            name,
            count(row["env_steps"]),
            count(row["env_steps_per_s"]),
            percent(row["wait_share"]),
            count(row["episodes"]),
            count(row["restarts"])
            + (", given up" if row["dropped"] else ", left" if row.get("left") else ""),
        )
        for name, row in rows.items()
        if name in slowest
    ]
    widths = [max(len(line[i]) for line in (names, *lines)) for i in range(len(names))]
    table = [
        "  " + "  ".join(f"{text:>{width}}" for text, width in zip(line, widths, strict=True))
        for line in (names, *lines)
    ]
    others = len(rows) - len(lines)
    return [*table, *([f"  ... and {others} with more steps"] if others else [])]


def _plain_line(state: RunState) -> str:
    values = state.values

    def parts() -> list[str]:
        shown = {
            "env": ("env_steps", count, ""),
            "opt": ("opt_steps", count, ""),
            "fps": ("fps", count, "/s"),
            "return": ("episode/return_mean", measure, ""),
            "eval": ("eval_reward", measure, ""),
            "success": ("eval/success_rate", measure, ""),
        }
        return [
            f"{label} {form(values[name])}{unit}"
            for label, (name, form, unit) in shown.items()
            if name in values
        ]

    line = " | ".join([f"{duration(state.wall_s):>8}", *parts()])
    if "eval/best" in values:
        line += f" (best {measure(values['eval/best'])})"
    faults = fault_phrases(values, state.actors())
    if lost := values.get("ledger/lost"):
        faults.append(f"{count(lost)} transitions lost")
    return f"{line} | {', '.join(faults)}" if faults else line


def _score(summary: Mapping[str, Any]) -> str:
    best, last = summary.get("best_score"), summary.get("last_score")
    if best is None:
        return ""
    at = summary.get("best_opt_steps")
    text = measure(best) + (f" after {count(at)} opt steps" if at is not None else "")
    by = summary.get("best_by", "eval_reward")
    if by != "eval_reward":
        text += f" by {by}"
        return text if last is None else f"{text}, last evaluation {measure(last)}"
    return text + (f", last {measure(last)}" if last is not None and last != best else "")


def _time(summary: Mapping[str, Any]) -> str:
    if summary.get("wall_s") is None:
        return ""
    bar_s = summary.get("seconds_to_stop_bar")
    reached = f", score reached after {duration(bar_s)}" if bar_s is not None else ""
    return duration(summary["wall_s"]) + reached


def _steps(summary: Mapping[str, Any], kind: str) -> str:
    if summary.get(f"{kind}_steps") is None:
        return ""
    rate = summary.get(f"{kind}_steps_per_s")
    return count(summary[f"{kind}_steps"]) + (f" ({count(rate)}/s)" if rate is not None else "")


def _faults(summary: Mapping[str, Any]) -> str:
    return ", ".join(fault_phrases({}, summary.get("actors") or {}))


def _shares(shares: Mapping[str, float] | None) -> str:
    largest = sorted((shares or {}).items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {percent(share)}" for name, share in largest if share >= 0.005)
