"""One run as its directory describes it: what it was, how far it came, how it ended.

Files may be missing, cut off or being written: a run may be in progress, or have been killed. Knows
nothing about how runs are shown.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from asyncrl.core.errors import ConfigError
from asyncrl.core.recorder import CLOCK_TIME, Record
from asyncrl.core.settings import flatten
from asyncrl.run.yaml_file import read_yaml

State = Literal["running", "ended", "failed", "killed", "elsewhere"]
"""`elsewhere`: started on another host, so only that host knows whether it still runs."""

RECORDS = "metrics.jsonl"
"""File of a run's records, one a line."""

_TAIL_BYTES = 1 << 18
"""More than the records of the last seconds take."""


@dataclass(frozen=True)
class RunFiles:
    """Reads the files of a run directory, each once."""

    path: Path

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The settings of the run, as in `config.yaml`."""
        path = self.path / "config.yaml"
        try:
            plain = read_yaml(path)
        except ConfigError as error:
            raise ConfigError(f"cannot load {path}: {error}") from error
        return plain if isinstance(plain, Mapping) else {}

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """What the run wrote at its end; empty if it has not, or was resumed since."""
        summary = _read_json(self.path / "summary.json")
        began = summary.get("starts", ())
        return summary if len(began) == len(self.starts) else {}

    @cached_property
    def starts(self) -> list[Mapping[str, Any]]:
        """When, where and how the run was started, and each time that it was resumed."""
        starts = _read_json(self.path / "run.json").get("starts")
        found = starts if isinstance(starts, list) else ()
        return [one for one in found if isinstance(one, Mapping)]

    @cached_property
    def last(self) -> Record:
        """The newest value of each number that the last records hold."""
        numbers: dict[str, float] = {}
        for record in _tail(self.path / RECORDS):
            numbers |= record
        return numbers

    @property
    def state(self) -> State:
        """Whether the run is active, and otherwise how it ended."""
        if self.summary:
            return "ended"
        began = self._start
        error = self.path / "error.txt"
        if error.exists() and error.stat().st_mtime >= self.began_at:
            return "failed"
        if began.get("host") != socket.gethostname():
            return "elsewhere" if began else "killed"
        return "running" if _is_asyncrl(began.get("pid")) else "killed"

    @property
    def agent(self) -> str:
        """The preset or `module:Config` that was trained."""
        agent = self._start.get("agent") or self.config.get("agent")
        return str((agent.get("type") if isinstance(agent, Mapping) else agent) or "")

    @property
    def env(self) -> str:
        """The environment's name."""
        return str(self.config.get("env", ""))

    @property
    def score(self) -> float | None:
        """The best score so far, by `save.best_by`."""
        found = self.summary["best_score"] if self.summary else self.last.get("eval/best")
        return None if found is None else float(found)

    @property
    def began_at(self) -> float:
        """When the last part of the run was started, in seconds since 1970; 0 if unknown."""
        try:
            began = datetime.strptime(str(self._start.get("time")), CLOCK_TIME).astimezone()
            return began.timestamp()
        except ValueError:
            return 0.0

    def number(self, name: str) -> float:
        """Return a count or a time, from the summary or, without one, from the last record."""
        return float((self.summary or self.last).get(name) or 0.0)

    @property
    def _start(self) -> Mapping[str, Any]:
        return self.starts[-1] if self.starts else {}


def find_runs(roots: list[Path]) -> list[RunFiles]:
    """Return the runs in these directories, at any depth, oldest first.

    A link to a run elsewhere counts; links to other directories are not followed, as they may lead
    in circles. Raises `ConfigError` if a root is not a directory.
    """
    runs: dict[Path, RunFiles] = {}
    links: list[Path] = []
    for root in roots:
        if not root.is_dir():
            raise ConfigError(f"{root} is not a directory; name one with runs in it, as runs/")
        for here, folders, _ in os.walk(root):
            if _is_run(Path(here)):
                runs[Path(here).resolve()] = RunFiles(Path(here))
                folders.clear()
            links += (path for name in folders if (path := Path(here, name)).is_symlink())
    for path in filter(_is_run, links):
        runs.setdefault(path.resolve(), RunFiles(path))
    return sorted(runs.values(), key=lambda run: (run.began_at, str(run.path)))


def _is_run(path: Path) -> bool:
    try:
        begun = (path / "checkpoints").is_dir() or (path / "run.json").is_file()
        return begun and (path / "config.yaml").is_file()
    except PermissionError:  # only another user may read it
        return False


def usual_axis(runs: Sequence[RunFiles]) -> str:
    """Return what runs are drawn over: environment steps, unless all are offline and make none."""
    offline = runs and all(run.config.get("mode") == "offline" for run in runs)
    return "opt_steps" if offline else "env_steps"


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings that are not the same in all, by their dotted names; None if absent."""
    flat = [dict(flatten(config)) for config in configs]
    names = dict.fromkeys(name for config in flat for name in config)
    found = {name: [config.get(name) for config in flat] for name in names}
    return {
        name: values for name, values in found.items() if any(v != values[0] for v in values[1:])
    }


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # absent, or cut off
        return {}
    return plain if isinstance(plain, Mapping) else {}


def _tail(path: Path) -> Iterator[Record]:
    """Yield the whole records among the last bytes of a file."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES)
            file.seek(start)
            lines = file.read().split(b"\n")
    except OSError:
        return
    for line in lines[1 if start else 0 :]:
        try:
            record = json.loads(line)
        except ValueError:  # being written
            continue
        if isinstance(record, dict):
            yield record


def _is_asyncrl(pid: object) -> bool:
    """Whether a process with this number exists and may be a run: numbers are reused."""
    if not isinstance(pid, int):
        return False
    try:
        return b"asyncrl" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return not Path("/proc").is_dir()
