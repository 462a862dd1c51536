"""Whether settings are of the kinds that their fields declare: Python itself would take any.

Flags and YAML are read by declarations. What Python code gives meets none until it is used: a count
of 2.0 fails in the middle of a run, a misspelt choice means the other one, and NaN, which no
comparison refuses, waits forever.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal

from asyncrl.errors import ConfigError

Hint = Any  # what it is declared as; Python has no common type for these


def check_declared(config: object, group: str = "") -> None:
    """Refuse counts that are not whole, numbers that are NaN or none, and words not to choose from.

    Sentences name a setting as `group.name`. Fields of other kinds than these are left alone.
    """
    cls: Hint = type(config)  # which mypy takes for nothing that can be hashed
    for name, kinds in _checked(cls).items():
        value = getattr(config, name)
        if not any(_fits(value, kind) for kind in kinds):
            words = " or ".join(filter(None, map(_words, kinds)))
            raise ConfigError(f"{group}.{name} must be {words}, got {value!r}".removeprefix("."))


@cache
def _checked(cls: type) -> Mapping[str, tuple[Hint, ...]]:
    """Return the fields that declare a number or a choice, and what may stand there."""
    hints: dict[str, Hint] = {}
    for base in reversed(cls.__mro__):
        with suppress(NameError):  # a user's own class may name what only type checkers import
            hints |= inspect.get_annotations(base, eval_str=True)
    kinds = {f.name: _kinds(hints[f.name]) for f in dataclasses.fields(cls) if f.name in hints}
    return {name: several for name, several in kinds.items() if any(map(_words, several))}


def _kinds(hint: Hint) -> tuple[Hint, ...]:
    is_union = _origin(hint) in {typing.Union, UnionType}
    return typing.get_args(hint) if is_union else (hint,)


def _origin(hint: Hint) -> Hint:
    return typing.get_origin(hint)


def _fits(value: object, kind: Hint) -> bool:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if kind is int:
        return is_number and isinstance(value, Integral)
    if kind is float:
        return isinstance(value, Real) and is_number and not math.isnan(value)
    if _origin(kind) is Literal:
        return value in typing.get_args(kind)
    if kind is NoneType:
        return value is None
    return not isinstance(value, Real)


def _words(kind: Hint) -> str:
    if _origin(kind) is Literal:
        *some, last = map(str, typing.get_args(kind))
        return f"{', '.join(some)} or {last}"
    return {int: "a whole number", float: "a number"}.get(kind, "")
