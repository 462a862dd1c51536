"""Which settings have an effect with which others, and which have no flag: one table each.

Refuses settings without effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from asyncrl.core.errors import ConfigError

if TYPE_CHECKING:
    from asyncrl.run.run_config import RunConfig


class Need(NamedTuple):
    """What settings, groups of settings and arguments need to have an effect."""

    setting: str
    values: tuple[str, ...]
    """One of these values of the setting."""

    names: tuple[str, ...]
    """Who needs it."""


_ENVS = ("async", "sync")
_ACTORS = ("async",)

NEEDS = (
    Need("mode", _ENVS, ("actors", "envs_per_actor", "segment", "limiter", "strategy")),
    Need("mode", _ENVS, ("parts.processor", "parts.strategy", "make_processor", "make_eval_env")),
    Need("mode", _ACTORS, ("launcher", "supervision", "inference", "transport", "proxy")),
    Need("mode", _ACTORS, ("hosts", "ray", "serving", "ranks", "learners")),
    Need("mode", _ACTORS, ("observers", "join_key", "start_hosts")),
    Need("mode", _ACTORS, ("parts.actor_agents", "actor_agents", "trainer.batches_per_draw")),
    Need("mode", _ACTORS, ("trainer.max_lag_s", "trainer.max_lag_opt_steps")),
    Need("mode", _ACTORS, ("trainer.sync_interval_opt_steps", "limiter.band_transitions")),
    Need("mode", ("offline",), ("data",)),
    Need("launcher", ("hosts", "ray"), ("hosts", "transport.bind_every_interface")),
    Need("launcher", ("ray",), ("ray",)),
    Need("launcher", ("hosts",), ("join_key",)),
    Need("inference", ("learner", "server"), ("serving",)),
    Need("supervision.restart.on_exception", ("drop_actor",), ("supervision.restart.min_actors",)),
)
"""All else has an effect in every run."""

IN_FILES = (
    *("env_schedule", "evaluate.final_timeout_s", "evaluate.play.max_episode_steps"),
    *("limiter.band_transitions", "parts", "ranks", "save.timeout_s", "segment.max_message_bytes"),
    *("supervision.restart.backoff_max_s", "supervision.restart.backoff_s"),
    *("supervision.restart.window_s", "supervision.stop_timeout_s"),
    *("trainer.batches_per_draw", "trainer.max_lag_opt_steps"),
    *("transport.advertise", "transport.bind", "transport.heartbeat_interval_s"),
    *("transport.max_message_bytes", "transport.max_model_bytes"),
    "transport.window",
)
"""Settings and groups without flags, which few runs set: a line of help for each would hide those
that many runs set."""

_LACKS: Mapping[str, str] = {
    "async": ", which learns from what its actors send",
    "sync": ", which has no actors",
    "offline": ", which steps no environments to learn from",
}
"""What a mode lacks for what has no effect with it."""


def is_within(name: str, groups: Iterable[str]) -> bool:
    """Whether a setting or an argument is one of these, or in a group of settings that is."""
    return any(f"{name}.".startswith(f"{group}.") for group in groups)


def needs_of(name: str) -> Iterable[Need]:
    """Return what a setting or an argument needs, or a group that it is in."""
    return (need for need in NEEDS if is_within(name, need.names))


def missing(name: str, value_of: Callable[[str], object]) -> Need | None:
    """Return what a setting or an argument lacks to have an effect; None if it has one."""
    lacking = (need for need in needs_of(name) if value_of(need.setting) not in need.values)
    return next(lacking, None)


def check_mode(
    config: RunConfig, given: Iterable[str] = (), shown: Callable[[str], str] = str
) -> None:
    """Raise `ConfigError` for what is given, or set in the config, without effect there.

    `given` are dotted names of settings, and arguments: what presets bring along is not refused.
    `shown` returns how a message names one.
    """
    by_value = {"data": config.data is not None, "inference": config.inference != "actor"}
    own = [*config.parts.given, *(name for name, is_set in by_value.items() if is_set)]
    for name in (*own, *(one for one in given if one not in by_value)):
        if need := missing(name, lambda path: attrgetter(path)(config)):
            setting, now = shown(need.setting), attrgetter(need.setting)(config)
            raise ConfigError(
                f"{shown(name)} has no effect with {setting}={now}{_LACKS.get(now, '')}; remove "
                f"it, or set {setting} to {' or '.join(need.values)}"
            )
