"""What starts the processes of a run on this machine, with the modules that they need."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from asyncrl.core.errors import ConfigError
from asyncrl.supervision.host_launcher import HostsConfig
from asyncrl.supervision.in_child import CHILD_ID
from asyncrl.supervision.local import LocalLauncher
from asyncrl.supervision.ray import RayConfig
from asyncrl.supervision.threads import ThreadLauncher
from asyncrl.training.describe_env import PRELOAD
from asyncrl.training.plan import HELPERS
from asyncrl.training.run_config import RunConfig

_PRELOAD = (*PRELOAD, "asyncrl.actor.process", "asyncrl.transport.zeromq")
"""Modules that almost every actor loads, with or without a network."""

_NETWORKS, _CHOICE = "asyncrl.agents.parts.torch_agent", "asyncrl.agents.parts.bounded"
"""What it loads with a network, which includes torch, and without one."""

RunLauncher = LocalLauncher
"""What starts the processes of a run."""

Elsewhere = HostsConfig | RayConfig
"""Settings of what starts actors on other machines."""

C = TypeVar("C", bound=RunConfig)


def start_launcher(*, networks: bool = True) -> RunLauncher:
    """Start what loads modules for actors, and later starts them; `networks` includes torch.

    Who calls it before loading torch saves a second: both then load it at the same time.
    """
    return LocalLauncher(preload=(*_PRELOAD, _NETWORKS if networks else _CHOICE))


def placed(config: C, launcher: RunLauncher | Elsewhere | None) -> tuple[C, RunLauncher | None]:
    """Return the config and the launcher of a call, whose `launcher` may be settings instead."""
    match launcher:
        case HostsConfig():
            return replace(config, launcher="hosts", hosts=launcher), None
        case RayConfig():
            return replace(config, launcher="ray", ray=launcher), None
        case RunLauncher() | None:
            return config, launcher
    raise ConfigError(
        f"launcher must be HostsConfig(...) or RayConfig(...), got {launcher!r:.80}; the config's "
        "own `launcher` takes names"
    )


def launcher_of(config: RunConfig, launcher: RunLauncher | None) -> RunLauncher | ThreadLauncher:
    """Return what starts the actors; close a launcher that does not fit.

    Without networks, actors are a quarter as large if what starts them has not loaded torch.
    """
    chosen: RunLauncher | ThreadLauncher
    if config.launcher != "thread" and config.inference == "actor":
        chosen = launcher or start_launcher()
    else:
        if launcher is not None:
            launcher.close()
        threads = config.launcher == "thread"
        chosen = ThreadLauncher() if threads else start_launcher(networks=False)
    chosen.names = {CHILD_ID: "environment", **HELPERS}
    return chosen
