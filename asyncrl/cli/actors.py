"""`asyncrl actors`: lists, adds and removes actors of a run that another terminal trains."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from asyncrl.cli.control import ControlSocket, Plain, ask
from asyncrl.cli.output import results, show
from asyncrl.cli.run_directory import check_run_dir
from asyncrl.core.errors import ConfigError
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.trainer import BaseTrainer
from asyncrl.recorders.run_state import count
from asyncrl.report.run_files import RunFiles

_log = logging.getLogger(__name__)

_USAGE = """\
usage: asyncrl actors RUN_DIR [+N | -N | N | list] [--json]

Changes the number of actors of an active run on this machine, or lists its actors.

  asyncrl actors RUN_DIR           list them: host, process, incarnation, steps, state, restarts
  asyncrl actors RUN_DIR +2        add two
  asyncrl actors RUN_DIR -1        remove one, the last; first it sends what it has
  asyncrl actors RUN_DIR 8         let the run have eight

  --json   print each actor as a line of JSON

Samples per insert, seeds and exploration follow. A resumed run has as many actors as before.\
"""

_WIDE = 160
_CHANGE = re.compile(r"[+-]?\d{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorsArguments:
    """The parsed command line."""

    run_dir: Path
    change: str | None = None
    """As given: a number, with a sign if it is added; None lists the actors."""

    json: bool = False


def parse(argv: list[str]) -> ActorsArguments:
    """Parse the command line."""
    words = [word for word in argv if word != "--json"]
    if {"-h", "--help"} & {*words}:
        show(_USAGE)
        raise SystemExit(0)
    if not words or len(words) > 2:
        raise ConfigError("name a run, and what to do: asyncrl actors RUN_DIR [+2 | -1 | 8 | list]")
    name, what = (*words, "list")[:2]
    change = None if what == "list" else what
    if change and not _CHANGE.fullmatch(change):
        raise ConfigError(f"{what!r} is neither list nor a number of actors such as +2, -1 or 8")
    if change and len(words) < len(argv):
        raise ConfigError("--json has an effect on the list only; remove it")
    return ActorsArguments(run_dir=Path(name), change=change, json="--json" in argv)


def run(arguments: ActorsArguments) -> int:
    """Ask the run, print its answer, and return the exit code."""
    check_run_dir(arguments.run_dir)
    try:
        answer = ask(arguments.run_dir, {"actors": arguments.change or "list"})
    except OSError as error:
        raise ConfigError(_why_unreachable(arguments.run_dir, error)) from error
    if arguments.change:
        show(_change_text(answer["before"], answer["actors"]))
    elif arguments.json:
        for row in answer["fleet"]:
            show(json.dumps(row))
    else:
        _print(answer["fleet"])
        if (several := answer["learners"]) > 1:
            show(f"actors of rank 0 only; each of the {several} learners has as many")
    return 0


@contextmanager
def answering(trainer: BaseTrainer, run_dir: Path) -> Iterator[None]:
    """Let `asyncrl actors` reach an asynchronous run while the block runs."""
    if not isinstance(trainer, AsyncTrainer):
        yield
        return
    try:
        control = ControlSocket(run_dir, partial(_answer, trainer))
    except OSError as error:
        _log.warning("asyncrl actors cannot reach this run: no socket in %s: %s", run_dir, error)
        yield
        return
    try:
        yield
    finally:
        control.close()


def _answer(trainer: AsyncTrainer, request: Plain) -> Plain:
    """Return the answer to a request; raise `ConfigError` if it cannot be met."""
    before = trainer.actors
    match request:
        case {"actors": "list"}:
            return {"fleet": _rows(trainer), "learners": trainer.learners}
        case {"actors": str(change)} if _CHANGE.fullmatch(change):
            trainer.set_actors(int(change) + (before if change[0] in "+-" else 0))
            return {"before": before, "actors": trainer.actors}
    raise ConfigError("the run does not understand the request: use the same version of asyncrl")


def _rows(trainer: AsyncTrainer) -> list[dict[str, Any]]:
    done = trainer.proxy.actors.rows()
    rows = []
    for status in trainer.fleet():
        row = done.get(status.actor_id)
        active = status.state in {"running", "waiting"}
        rows.append(
            {
                "actor": status.actor_id,
                "host": status.place.host,
                "pid": status.place.pid,
                "incarnation": status.incarnation,
                "env_steps": row.env_steps if row else 0,
                "env_steps_per_s": row.steps_per_s if row and active else 0.0,
                "state": status.state,
                "restarts": row.restarts + row.memory_restarts if row else 0,
            }
        )
    return rows


def _why_unreachable(run_dir: Path, error: Exception) -> str:
    run = RunFiles(run_dir)
    state = run.state
    if state != "running":
        ends = {
            "ended": "has ended",
            "failed": "has failed",
            "killed": "does not run",
            "elsewhere": "was started on another machine, or in another container: use this "
            "command there",
        }
        return f"the run in {run_dir} {ends[state]}"
    if run.config.get("mode", "async") != "async":
        return f"the run in {run_dir} is of mode {run.config['mode']}, which has no actors"
    return f"the run in {run_dir} does not answer: {error}; it may be starting or ending"


def _change_text(before: int, actors: int) -> str:
    if actors > before:
        return f"{before} -> {actors} actors; the others are started"
    if actors < before:
        return f"{before} -> {actors} actors; those that leave send what they have first"
    return f"the run has {actors} actors already"


def _print(fleet: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("actor", "host", "pid", "incarnation", "env steps", "steps/s", "state"):
        table.add_column(name, justify="left" if name in {"host", "state"} else "right")
    table.add_column("restarts", justify="right")
    for row in fleet:
        table.add_row(
            str(row["actor"]),
            str(row["host"]) or "-",
            str(row["pid"] or "-"),
            str(row["incarnation"]) if row["incarnation"] >= 0 else "-",
            count(row["env_steps"]),
            count(row["env_steps_per_s"]),
            str(row["state"]),
            count(row["restarts"]),
        )
    width = None if results().isatty() else _WIDE
    Console(file=results(), width=width, markup=False, highlight=False).print(table)
