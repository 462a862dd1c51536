"""Wrappers of environments by name: `module:Wrapper`, or `module:Wrapper(setting=value, ...)`.

Finds and applies them, in the process that makes the environment.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import gymnasium
from gymnasium.vector import VectorEnv

from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import load_object


class _Named(NamedTuple):
    """A wrapper's import path, and its settings."""

    path: str
    settings: Mapping[str, Any]


def parse_wrappers(names: Iterable[str]) -> tuple[_Named, ...]:
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


def _parse(name: str) -> _Named:
    path, bracket, _ = name.partition("(")
    module, _, attribute = path.partition(":")
    if all(map(str.isidentifier, [*module.split("."), *attribute.split(".")])):
        try:
            return _Named(path, _settings(name[len(path) :]) if bracket else {})
        except (SyntaxError, ValueError):
            pass
    raise ConfigError(
        f"env.wrappers has {name!r}; expected module:Wrapper, as minigrid.wrappers:ImgObsWrapper, "
        "or module:Wrapper(setting=value), as gymnasium.wrappers:TimeLimit(max_episode_steps=50). "
        "Values are literals of Python: numbers, 'texts', lists, True, False, None"
    )


def _settings(brackets: str) -> dict[str, Any]:
    """Return the keyword arguments of `(setting=value, ...)`; raise `ValueError` for others."""
    call = ast.parse(f"wrapper{brackets}", mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise ValueError(brackets)
    settings = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError(brackets)
        settings[keyword.arg] = ast.literal_eval(keyword.value)
    return settings


def _applied(env: Any, name: str, named: _Named) -> Any:  # noqa: ANN401
    wrapper = load_object(named.path)
    if not callable(wrapper):
        raise ConfigError(f"env.wrappers has {name!r}, which is {wrapper!r:.80}, not a wrapper")
    try:
        wrapped = wrapper(env, **named.settings)
    except Exception as error:
        error.add_note(f"asyncrl: while applying the wrapper {name!r}")
        raise
    if not isinstance(wrapped, gymnasium.Env | VectorEnv):
        raise ConfigError(
            f"env.wrappers has {name!r}, which returned {wrapped!r:.80} instead of an environment"
        )
    return wrapped
