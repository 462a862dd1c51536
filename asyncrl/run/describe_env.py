"""Inspects the environments of a run in a child process.

Constructors of environments may do anything to their process: end it, change its directory, ignore
its signals, start threads that never end. None of this affects the process that trains.

The first actor could report its spaces instead. That would save 0.07 s of the start at most, which
the child takes beside other work on 2 cores: it is forked while this process still loads torch. And
bad environments would be found by actors, which restart.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from asyncrl.core.env import (
    EnvDescription,
    EnvSource,
    MakeBatchEnv,
    description_of,
    plain_description,
    source_of,
)
from asyncrl.core.goals import RelabelsGoals
from asyncrl.core.interrupter import Interrupter

if TYPE_CHECKING:  # torch, which the child does not need, and what starts children
    from asyncrl.fleet.local import LocalLauncher
    from asyncrl.run.run_config import RunConfig

PRELOAD = ("asyncrl.envs.gym",)
"""Modules that the child needs; the launcher preloads them first."""


def describe_in_child(
    make_env: MakeBatchEnv,
    *,
    timeout_s: float,
    launcher: LocalLauncher | None = None,
    goals: bool = False,
    interrupter: Interrupter | None = None,
) -> EnvDescription:
    """Make environments in a child process, inspect and close them, and return the facts.

    `goals` asks how rewards are computed from goals, for which one environment may be stepped.
    Makes one environment if a config or `make_batch` gives their number. Raises what `run_in_child`
    does, also when `interrupter` ends the run; `timeout_s` is `supervision.start_timeout_s`.
    """
    from asyncrl.fleet.in_child import run_in_child  # noqa: PLC0415  # who reads facts starts none

    seen = run_in_child(
        partial(_describe, source_of(make_env), goals=goals),
        what="building the environment",
        timeout_s=timeout_s,
        timeout_setting="supervision.start_timeout_s",
        launcher=launcher,
        preload=PRELOAD,
        interrupter=interrupter,
    )
    return description_of(seen)


def describe_for(
    config: RunConfig,
    make_env: MakeBatchEnv,
    launcher: LocalLauncher | None = None,
    interrupter: Interrupter | None = None,
) -> EnvDescription:
    """Inspect environments as a run needs it: in a child process, or here if actors are threads."""
    goals = isinstance(config.replay, RelabelsGoals)
    if config.launcher == "thread":
        return source_of(make_env).describe(goals=goals)
    timeout_s = config.supervision.start_timeout_s
    return describe_in_child(
        make_env, timeout_s=timeout_s, launcher=launcher, goals=goals, interrupter=interrupter
    )


def describe_env_of_run(config: RunConfig) -> EnvDescription:
    """Inspect the environments of a run's actors in a child process."""
    timeout_s = config.supervision.start_timeout_s
    return describe_in_child(config.env_config().build, timeout_s=timeout_s)


def _describe(source: EnvSource, *, goals: bool) -> dict[str, Any]:
    """Inspect the environments, in the child. Imports only what makes environments."""
    return plain_description(source.describe(goals=goals))
