"""`asyncrl resume`: resumes a run from its newest valid checkpoint, in its own directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from asyncrl.checkpoint.checkpoint import MANIFEST, Checkpointer
from asyncrl.checkpoint.resume import Resume
from asyncrl.cli.flags import Output, TrainArguments, naming_flags, own_values, parse_run
from asyncrl.cli.learners import clear_for_restart, follow, group_of
from asyncrl.cli.output import show
from asyncrl.cli.parser import flag_of
from asyncrl.cli.run_directory import check_run_dir, has_summary, run_dir_made
from asyncrl.cli.train import train_in
from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import to_plain
from asyncrl.extensions.ranks.share import sharing_failure
from asyncrl.run.run_config import RunConfig
from asyncrl.run.saved_model import SavedModel
from asyncrl.run.yaml_file import load_yaml

if TYPE_CHECKING:
    from asyncrl.run.launchers import RunLauncher

_USAGE = """\
usage: asyncrl resume RUN_DIR [OPTIONS]

Resumes a run that was interrupted, has failed, or has reached a limit that OPTIONS raise.
OPTIONS are those of `asyncrl train`; changes are printed. Without options, the run continues with
its settings in RUN_DIR/config.yaml. Records are appended. A run without a checkpoint starts again.

A run may also branch off from an older checkpoint, into another directory:
  asyncrl resume RUN_DIR/checkpoints/NUMBER --run-dir NEW_DIR [OPTIONS]

  --no-load-replay   start with an empty replay instead of the checkpoint's. Required for another
                     n-step or segment length, or less capacity than the checkpoint's fills\
"""

_NO_REPLAY = "--no-load-replay"


def parse(argv: list[str]) -> TrainArguments:
    """Parse the command line; the run's settings are the defaults of all flags."""
    if {"-h", "--help"} & set(argv[:1]):
        show(_USAGE)
        raise SystemExit(0)
    if not argv or argv[0].startswith("-"):
        raise ConfigError("name a run: asyncrl resume RUN_DIR [OPTIONS]")
    name, *words = argv
    resume: Resume = "without replay" if _NO_REPLAY in words else True
    words = [word for word in words if word != _NO_REPLAY]
    given, run_dir = own_values(words), Path(name)
    taken = {"config", "run_dir", "replay"}
    if (run_dir / MANIFEST).is_file():
        taken.remove("run_dir")
        resume, run_dir = _branch(SavedModel.at(run_dir), given.get("run_dir"), resume)
    check_run_dir(run_dir)
    for path in given.keys() & taken:
        raise ConfigError(f"{flag_of(path)} cannot be changed: it is taken from the run")
    config = load_yaml(RunConfig, run_dir / "config.yaml")
    arguments = parse_run(f"asyncrl resume {quote(name)}", words, to_plain(config), Output)
    if arguments.auto:
        raise ConfigError("--actors auto cannot be used here: give a number, or omit the flag")
    output = arguments.output
    if resume in (True, "without replay"):
        output = replace(output, run_dir=run_dir)
    return replace(arguments, output=output, resume=resume)


def _branch(chosen: SavedModel, target: str | None, resume: Resume) -> tuple[Path, Path]:
    """Return a chosen checkpoint and the directory of its run; refuse what cannot branch off."""
    checkpoint, run_dir = chosen.checkpoints / chosen.name, chosen.run_dir
    if resume is not True:
        raise ConfigError(f"{_NO_REPLAY} cannot be combined with a chosen checkpoint")
    if target is None:
        raise ConfigError(
            f"{checkpoint} is a chosen checkpoint, from which a run branches off into another "
            f"directory; add --run-dir, or resume the run itself: asyncrl resume {run_dir}"
        )
    return checkpoint, run_dir


def run(arguments: TrainArguments, launcher: RunLauncher | None = None) -> int:
    """Train, and return the exit code. `launcher` starts the processes of an asynchronous run."""
    run_dir = arguments.output.run_dir
    assert run_dir is not None  # noqa: S101  # set by `parse`
    group = group_of(arguments)
    with sharing_failure(group), naming_flags(arguments.given):
        if group is not None and group.rank:
            return follow(group, arguments, launcher)
        return _resume_in(run_dir, arguments, launcher)


def _resume_in(run_dir: Path, arguments: TrainArguments, launcher: RunLauncher | None) -> int:
    if isinstance(arguments.resume, Path):
        with run_dir_made(run_dir):
            return train_in(run_dir, arguments, launcher)
    if not _has_begun(run_dir):
        clear_for_restart(run_dir / "checkpoints")
        arguments = replace(arguments, resume=False)
        if not arguments.output.quiet:
            show(f"{run_dir} holds no checkpoint to resume from, so the run starts again")
    return train_in(run_dir, arguments, launcher)


def _has_begun(run_dir: Path) -> bool:
    """Whether a checkpoint has been saved, even if it is gone; the best model is none."""
    has_learned = (run_dir / "summary.json").exists() and not has_summary(run_dir, 0)
    return has_learned or Checkpointer(run_dir / "checkpoints").names() not in ([], ["best"])
