"""What a run from the command line leaves in its directory, besides checkpoints and numbers."""

from __future__ import annotations

import contextlib
import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from asyncrl.checkpoint.directory import make_directory, sync
from asyncrl.core.errors import ConfigError
from asyncrl.learner.train_result import TrainResult
from asyncrl.training.run_config import RunConfig, save_yaml


@contextmanager
def run_dir_made(run_dir: Path) -> Iterator[None]:
    """Make a directory for its user alone; refuse one in which a run is already.

    It is gone again if nothing came into it; one that was there before stays.
    """
    if (run_dir / "config.yaml").exists():
        raise ConfigError(
            f"{run_dir} already holds a run; give another --run-dir, or go on with it: "
            f"asyncrl resume {run_dir}"
        )
    was_there = run_dir.exists()
    try:
        make_directory(run_dir)
    except OSError as error:
        raise ConfigError(f"cannot make the run directory {run_dir}: {error.strerror}") from error
    try:
        yield
    finally:
        if not was_there:
            with suppress(OSError):
                run_dir.rmdir()


def save_config(config: RunConfig, run_dir: Path) -> None:
    """Put it in the place of what was saved before the run was resumed."""
    with _whole(run_dir / "config.yaml") as draft:
        save_yaml(config, draft)


def save_error(error: Exception, run_dir: Path) -> None:
    """Keep a traceback, and say where."""
    path = run_dir / "error.txt"
    with contextlib.suppress(OSError):  # a full disk may be the very error
        path.write_text("".join(traceback.format_exception(error)))
        error.add_note(f"asyncrl: {path} holds the traceback")


def save_summary(result: TrainResult, run_dir: Path) -> None:
    """Put it in the place of an earlier one; like records, with null for NaN and infinity."""
    summary = json.loads(json.dumps(result.summary()), parse_constant=lambda _: None)
    with _whole(run_dir / "summary.json") as draft:
        draft.write_text(json.dumps(summary, indent=2) + "\n")


def has_summary(run_dir: Path, opt_steps: int) -> bool:
    """Tell whether there is a summary, and it is of a run that has come so far.

    A run that was killed before it could write one has none, or one of an earlier part of it.
    """
    try:
        summary = json.loads((run_dir / "summary.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("opt_steps") == opt_steps


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Give the name of a draft, which takes the path's place once all of it is on disk."""
    draft = path.with_name(f".{path.name}")
    try:
        yield draft
        sync(draft)
        draft.replace(path)
        sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)
