"""What each mode uses: one table of settings and parts, and what refuses those without effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from asyncrl.core.errors import ConfigError

if TYPE_CHECKING:
    from asyncrl.training.run_config import RunConfig

Mode = Literal["async", "sync", "offline"]

_LACKS: Mapping[Mode, str] = {
    "async": "learns from what its actors send",
    "sync": "has no actors",
    "offline": "steps no environments to learn from",
}

_ACTORS: tuple[Mode, ...] = ("async",)
_ENVIRONMENTS: tuple[Mode, ...] = ("async", "sync")

USED_BY: Mapping[str, tuple[Mode, ...]] = {
    "actors": _ENVIRONMENTS,
    "envs_per_actor": _ENVIRONMENTS,
    "segment": _ENVIRONMENTS,
    "limiter": _ENVIRONMENTS,
    "limiter.band_transitions": _ACTORS,
    "trainer.batches_per_draw": _ACTORS,
    "trainer.sync_interval_opt_steps": _ACTORS,
    "trainer.max_lag_s": _ACTORS,
    "trainer.max_lag_opt_steps": _ACTORS,
    "launcher": _ACTORS,
    "inference": _ACTORS,
    "serving": _ACTORS,
    "supervision": _ACTORS,
    "hosts": _ACTORS,
    "ray": _ACTORS,
    "transport": _ACTORS,
    "proxy": _ACTORS,
    "ranks": _ACTORS,
    "data": ("offline",),
    "parts.processor": _ENVIRONMENTS,
    "parts.strategy": _ACTORS,
    "parts.actor_agents": _ACTORS,
    "make_eval_env": _ENVIRONMENTS,
    "make_processor": _ENVIRONMENTS,
    "strategy": _ACTORS,
    "actor_agents": _ACTORS,
    "record_order": _ACTORS,
    "join_key": _ACTORS,
}
"""Setting, group of settings, or argument -> the modes that use it. Others are used by all."""


def uses(mode: Mode, name: str) -> bool:
    """Whether a mode uses a setting or an argument."""
    groups = (modes for path, modes in USED_BY.items() if f"{name}.".startswith(f"{path}."))
    return all(mode in modes for modes in groups)


def check_mode(
    config: RunConfig, given: Iterable[str] = (), shown: Callable[[str], str] = str
) -> None:
    """Raise `ConfigError` for what is given, or set in the config, without effect in its mode.

    `given` are dotted names of settings, and arguments: what presets bring along is not refused.
    `shown` returns how a message names one.
    """
    by_value = {"data": config.data is not None, "inference": config.inference != "actor"}
    own = [*config.parts.given, *(name for name, is_set in by_value.items() if is_set)]
    for name in (*own, *(one for one in given if one not in by_value)):
        if not uses(config.mode, name):
            modes = " or ".join(mode for mode in _LACKS if uses(mode, name))
            raise ConfigError(
                f"{shown(name)} has no effect with {shown('mode')}={config.mode}, which "
                f"{_LACKS[config.mode]}; remove it, or set {shown('mode')} to {modes}"
            )
