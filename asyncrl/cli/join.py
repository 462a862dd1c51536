"""`asyncrl join`: runs actors on this machine for a learner on another one."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from asyncrl.cli.flags import check_config_file
from asyncrl.cli.output import printing_log, show
from asyncrl.cli.parser import POSITIONAL, parsed
from asyncrl.core.declared import Count, NotNegative
from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.settings import from_plain
from asyncrl.metrics.system import Cores
from asyncrl.run.join import join_run
from asyncrl.run.join_key import JoinKey
from asyncrl.run.run_config import RunConfig
from asyncrl.run.signals import interrupting
from asyncrl.run.yaml_file import load_yaml

_POLL_S = 0.2
_SAID = {
    "ended": "the run has ended",
    "left": "left the run",
    "not joined": "ended without having joined the run",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinArguments:
    """Run actors on this machine for a run that was started with --listen, until it ends."""

    key: Annotated[Path, POSITIONAL]
    """The file `join.key` of the run's directory, or a copy that only you can read."""

    actors: Count | None = None
    """Maximum number of actors to run here. Default: one per core."""

    config: Path | None = None
    """YAML file with the run's settings. Default: those in the key. Required if the run was started
    from Python with settings that a file can hold."""

    env: str | None = None
    """The same environment under another name, if it is installed differently here."""

    wait_s: NotNegative = 60.0
    """Seconds to wait for the key to be written, if it is missing: jobs of a scheduler may start in
    any order."""

    quiet: bool = False
    """Print errors and warnings only."""


parse = partial(parsed, JoinArguments, "asyncrl join")


def run(arguments: JoinArguments) -> int:
    """Serve the run until it ends, and return the exit code."""
    interrupter = Interrupter()
    _wait_for_key(arguments)
    config = _config(arguments)
    printed = () if arguments.quiet else ("asyncrl.run.join",)
    with (
        printing_log(*printed),
        interrupting(interrupter, config.grace_s) as interrupted,
    ):
        outcome = join_run(
            arguments.key,
            config.agent,
            config.env_config().build,
            config,
            actors=arguments.actors or max(1, int(Cores().share)),
            actor_agents=config.parts.agents_of_actors(config.agent, config.actors),
            make_processor=config.parts.make_processor,
            interrupter=interrupter,
        )
    if not arguments.quiet:
        show(_SAID[outcome])
    return interrupted.exit_code


def _wait_for_key(arguments: JoinArguments) -> None:
    path, wait_s = arguments.key, arguments.wait_s
    if wait_s and not arguments.quiet and not path.exists():
        show(f"there is no {path} yet; waiting for it, at most {wait_s:g} s")
    deadline = time.monotonic() + wait_s
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _config(arguments: JoinArguments) -> RunConfig:
    """Return the run's settings: of a file, or those in the key."""
    if arguments.config is not None:
        check_config_file(arguments.config)
        config = load_yaml(RunConfig, arguments.config)
    else:
        settings = JoinKey.load(arguments.key).settings
        if settings is None:
            raise ConfigError(
                f"{arguments.key} has no settings, because its run was started from Python: give "
                "them by --config, or call asyncrl.join_run with those of the run"
            )
        config = from_plain(RunConfig, settings)
    return replace(config, env=arguments.env) if arguments.env else config
