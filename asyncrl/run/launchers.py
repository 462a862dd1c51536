"""What starts the processes of a run on this machine, with the modules that they need.

Loads little: a command starts the launcher first, and loads torch while the launcher does, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncrl.core.types import MOST_ACTORS, ActorId
from asyncrl.fleet.in_child import CHILD_ID
from asyncrl.fleet.local import LocalLauncher
from asyncrl.run.describe_env import PRELOAD

if TYPE_CHECKING:
    from asyncrl.fleet.threads import ThreadLauncher
    from asyncrl.run.run_config import RunConfig

_TRANSPORT = ("asyncrl.transport.zeromq", "asyncrl.transport.zeromq_actor")
_PRELOAD = (*PRELOAD, "asyncrl.run.plan", "asyncrl.actor.actor", *_TRANSPORT)
"""Modules that every actor and evaluator loads, with or without a network."""

_NETWORKS = ("asyncrl.agents.dqn", "asyncrl.agents.ppo", "asyncrl.agents.sac")
"""What they load with a network: torch, and nearly all that any agent is made of."""

_CHOICE = ("asyncrl.agents.parts.choosing",)
"""What they load without one."""

EVALUATOR, SERVER = ActorId(MOST_ACTORS), ActorId(MOST_ACTORS + 1)

HELPERS = {EVALUATOR: "evaluator", SERVER: "inference server"}
"""The slots and names of the processes that are not actors."""

_NAMES = {CHILD_ID: "environment", **HELPERS}

RunLauncher = LocalLauncher
"""What starts the processes of a run."""


def start_launcher(*, networks: bool = True) -> RunLauncher:
    """Start what loads modules for actors, and later starts them; `networks` includes torch.

    Who calls it before loading torch saves a second: both then load it at the same time.
    """
    return LocalLauncher(preload=(*_PRELOAD, *(_NETWORKS if networks else _CHOICE)), names=_NAMES)


def launcher_of(config: RunConfig, launcher: RunLauncher | None) -> RunLauncher | ThreadLauncher:
    """Return what starts the actors; close a launcher that does not fit.

    Without networks, actors are a quarter as large if what starts them has not loaded torch.
    """
    if config.launcher != "thread" and config.inference == "actor":
        return launcher or start_launcher()
    if launcher is not None:
        launcher.close()
    if config.launcher != "thread":
        return start_launcher(networks=False)
    from asyncrl.fleet.threads import ThreadLauncher  # noqa: PLC0415  # few runs

    return ThreadLauncher(_NAMES)
