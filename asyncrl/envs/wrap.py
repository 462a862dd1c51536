"""Wrappers of environments by name: `module:Wrapper`, or `module:Wrapper(setting=value, ...)`.

Finds and applies them, in the process that makes the environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

import gymnasium
from gymnasium.vector import VectorEnv

from asyncrl.core.errors import ConfigError
from asyncrl.core.named import Named


def parse_wrappers(names: Iterable[str]) -> tuple[Named, ...]:
    """Return the wrappers of `EnvConfig.wrappers`; raise `ConfigError` if one is not of the form.

    Imports none of them: that is for the process that steps the environments.
    """
    return tuple(_parse(name) for name in names)


SomeEnv = TypeVar("SomeEnv")


def wrap(env: SomeEnv, names: Sequence[str]) -> SomeEnv:
    """Return a single or a vector environment in these wrappers, the first one innermost.

    Closes it if one of them fails.
    """
    wrapped: Any = env
    try:
        for name, named in zip(names, parse_wrappers(names), strict=True):
            wrapped = _applied(wrapped, name, named)
    except BaseException:
        wrapped.close()
        raise
    return cast(SomeEnv, wrapped)


def _parse(name: str) -> Named:
    try:
        return Named.parse(name)
    except ConfigError as error:
        raise ConfigError(f"env.wrappers: {error}") from error


def _applied(env: Any, name: str, named: Named) -> Any:  # noqa: ANN401
    wrapper = named.load("env.wrappers", "env")
    try:
        wrapped = wrapper(env)
    except Exception as error:
        error.add_note(f"asyncrl: while applying the wrapper {name!r}")
        raise
    if not isinstance(wrapped, gymnasium.Env | VectorEnv):
        raise ConfigError(
            f"env.wrappers has {name!r}, which returned {wrapped!r:.80} instead of an environment"
        )
    return wrapped
