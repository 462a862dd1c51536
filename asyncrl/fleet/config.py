"""Settings of what starts, watches and restarts actors, here and on other machines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from asyncrl.core.declared import (
    Count,
    CountOrOff,
    Natural,
    NotNegative,
    Positive,
    PositiveOrOff,
    Within,
    check_declared,
)
from asyncrl.core.errors import ConfigError

OnException = Literal["raise", "restart", "restart_env", "drop_actor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicyConfig:
    """How often failed actors are restarted, and how soon."""

    max_restarts: Natural = 10
    """Maximum restarts of one actor, or of the evaluator, within `window_s`. 0 allows none. Rebuilt
    environments are counted separately."""

    window_s: Positive = 600.0
    """Seconds after which a failure no longer counts. Time in which the actor hung is excluded."""

    backoff_s: NotNegative = 0.1
    """Seconds before the first restart of an actor. Each further failure within `window_s` doubles
    it."""

    backoff_max_s: NotNegative = 30.0
    """Maximum backoff in seconds."""

    on_exception: OnException = "raise"
    """What to do after an exception in an actor. `raise` ends the run, since it is a defect. For
    environments known to fail at times: `restart` restarts the actor's process, as after a crash;
    `restart_env` rebuilds all environments of the actor in the same process; `drop_actor` continues
    without the actor. The evaluator's process is restarted in every case but `raise`."""

    min_actors: Count = 1
    """Minimum number of actors for `drop_actor`. An exception that would leave fewer ends the
    run."""

    def __post_init__(self) -> None:
        check_declared(self, "supervision.restart")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorManagerConfig:
    """Timeouts, limits and restarts of actors."""

    step_timeout_s: PositiveOrOff = 300.0
    """Timeout for one actor step in seconds. After it the actor is killed and restarted. 0
    disables."""

    start_timeout_s: Positive = 300.0
    """Timeout for the start of an actor in seconds: imports and environments. After it the actor is
    killed and restarted. No effect if `step_timeout_s` is 0."""

    memory_limit_bytes: CountOrOff = 0
    """Memory limit of one actor process in bytes. Above it the actor sends its experience, exits
    and is restarted, before the system's OOM killer chooses a process. Nothing is lost, and it does
    not count as a failure. If the actor spends most of its time on restarts, the run ends. Shared
    memory such as loaded modules counts. 0 disables."""

    stop_timeout_s: Positive = 15.0
    """Seconds for actors to send their remaining experience and exit before they are killed. At the
    memory limit: seconds without a heartbeat."""

    restart: RestartPolicyConfig = field(default_factory=RestartPolicyConfig)
    """When a failed actor is restarted."""

    def __post_init__(self) -> None:
        check_declared(self, "supervision")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsConfig:
    """Actors on hosts that join, with `launcher=hosts`."""

    min_actors: Natural | None = None
    """Number of actors that hosts must have room for before the first actor starts. None waits for
    all that the run has then. 0 does not wait."""

    host_timeout_s: Positive = 10.0
    """Seconds without a message after which a host is given up. Its actors start again on other
    hosts, and what they still send is ignored."""

    learner_timeout_s: Positive = 30.0
    """Seconds without a message from the learner after which a host ends its actors and itself."""

    def __post_init__(self) -> None:
        check_declared(self, "hosts")


_ADDRESS = re.compile(r"auto|[^\s/]+:\d{1,5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """Hosts on a Ray cluster, with `launcher=ray`."""

    address: str = "auto"
    """`HOST:PORT` of the cluster's head. `auto` takes RAY_ADDRESS, or the cluster that this machine
    is a node of. No cluster is started."""

    hosts: Annotated[int, Within("[0, inf)", zero="one per node")] = 0
    """Number of hosts, which share the actors equally. 0: one per node of the cluster."""

    cpus_per_actor: Positive = 1.0
    """Logical CPUs of Ray that a host reserves for each of its actors."""

    placement: Literal["spread", "pack"] = "spread"
    """Whether Ray spreads hosts over many nodes or packs them into few, as far as it can."""

    timeout_s: Positive = 30.0
    """Seconds for Ray to find places for all hosts. Where a cluster grows on demand, allow the time
    that a new node needs."""

    def __post_init__(self) -> None:
        check_declared(self, "ray")
        if not _ADDRESS.fullmatch(self.address):
            raise ConfigError(
                f"ray.address must be auto or HOST:PORT, got {self.address!r}; the learner runs on "
                "a node of a cluster that is there: `ray start --address=HOST:PORT` makes this "
                "machine one, and `ray job submit` starts the learner on one"
            )
