"""`asyncrl resume`: goes on with a run from its newest whole checkpoint, in its own directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from asyncrl.cli.flags import dashed
from asyncrl.cli.output import show
from asyncrl.cli.run_directory import check_run_dir
from asyncrl.cli.train import TrainArguments, parse_flags, train_in
from asyncrl.core.errors import ConfigError
from asyncrl.training.presets import preset_like
from asyncrl.training.run_config import RunConfig, load_yaml

_USAGE = """\
usage: asyncrl resume RUN_DIR [OPTIONS]

Goes on with a run that was interrupted, has failed, or has reached a limit that is now raised.
OPTIONS are those of `asyncrl train`; what they change is told. Without any, the run goes on as it
was: its settings are in RUN_DIR/config.yaml, and its records are continued.\
"""

_GIVEN_ELSEWHERE = ("--config", "--run-dir", "--replay-kind")


def parse(argv: list[str]) -> TrainArguments:
    """Read the command line; the settings of the run are the defaults of all flags."""
    if {"-h", "--help"} & set(argv[:1]):
        show(_USAGE)
        raise SystemExit(0)
    if not argv or argv[0].startswith("-"):
        raise ConfigError("name a run: asyncrl resume RUN_DIR [OPTIONS]")
    name, *flags = dashed(argv)
    run_dir = Path(name)
    check_run_dir(run_dir)
    for flag in flags:
        if flag.startswith(_GIVEN_ELSEWHERE):
            raise ConfigError(f"{flag.partition('=')[0]} has no meaning here: the run says it")
    config = load_yaml(RunConfig, run_dir / "config.yaml")
    arguments = parse_flags(f"asyncrl resume {name}", preset_like(config), config, flags)
    if arguments.auto:
        raise ConfigError("--actors auto has no meaning here: give a number, or leave it as it is")
    return replace(arguments, output=replace(arguments.output, run_dir=run_dir))


def run(arguments: TrainArguments) -> int:
    """Train, and return the exit code."""
    run_dir = arguments.output.run_dir
    assert run_dir is not None  # noqa: S101  # `parse` has set it
    return train_in(run_dir, arguments, resume=True)
