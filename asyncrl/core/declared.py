"""Declares in a setting's field what it may be: kind, range, and what 0 means.

    batch_size: Count = 128
    hidden: Annotated[Widths, COMMON] = (64, 64)
    tau: Annotated[float, Within("(0, 1]")] = 0.005
    max_lag_s: Annotated[float, Within("[0, inf)", zero="off")] = 0.0

`check_declared` checks a config against its fields, with one message for each kind of error.
Independent of any particular setting.
"""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias

from asyncrl.core.errors import ConfigError

Hint = Any  # what a field is declared as; Python has no common type for these


@dataclass(frozen=True, slots=True)
class Within:
    """The range of a setting's numbers; in a tuple or a schedule, of each of its numbers."""

    interval: str
    """As in mathematics: `[1, inf)`, `(0, 1]`. Infinity is never included."""

    zero: str = ""
    """What 0 means, if it has a special meaning; 0 is then allowed."""

    why: str = ""
    """Why the range is needed, if that is not obvious."""

    def __contains__(self, number: float) -> bool:
        low, high = self.ends
        above = low < number if self.interval[0] == "(" else low <= number
        below = number < high if self.interval[-1] == ")" else number <= high
        return (above and below and math.isfinite(number)) or bool(self.zero and number == 0)

    def __str__(self) -> str:
        """Return the rule as the end of a sentence with "must"."""
        low, high = self.ends
        zero = f" ({self.zero})" if self.zero else ""
        if math.isfinite(high):
            words = f"lie in {self.interval}" + (f", 0 for {self.zero}" if self.zero else "")
        elif not math.isfinite(low):
            words = "be finite"
        elif low == 0:
            words = "be positive" if self.interval[0] == "(" else f"be 0{zero} or more"
        else:
            least = "more than" if self.interval[0] == "(" else "at least"
            words = f"be {f'0{zero} or ' if zero else ''}{least} {low:g}"
        return words + (f" ({self.why})" if self.why else "")

    @property
    def ends(self) -> tuple[float, float]:
        """The two ends, included or not."""
        low, high = self.interval[1:-1].split(",")
        return float(low), float(high)


Count: TypeAlias = Annotated[int, Within("[1, inf)")]
Natural: TypeAlias = Annotated[int, Within("[0, inf)")]
CountOrOff: TypeAlias = Annotated[int, Within("[0, inf)", zero="off")]
Finite: TypeAlias = Annotated[float, Within("(-inf, inf)")]
Positive: TypeAlias = Annotated[float, Within("(0, inf)")]
NotNegative: TypeAlias = Annotated[float, Within("[0, inf)")]
PositiveOrOff: TypeAlias = Annotated[float, Within("[0, inf)", zero="off")]
Share: TypeAlias = Annotated[float, Within("[0, 1]")]
Port: TypeAlias = Annotated[int, Within("[0, 65535]", zero="a free one")]
Widths: TypeAlias = Annotated[tuple[int, ...], Within("[1, inf)")]


_PACKAGE = __name__.partition(".")[0]

COMMON = object()
"""Marks the most important settings, which the command line's short help shows."""


class Member(typing.NamedTuple):
    """One of the kinds of values that a setting may have, and the range of its numbers."""

    kind: Hint
    within: Within | None


def check_declared(config: object, group: str = "", *, flags: bool = False) -> None:
    """Raise for values that fields do not declare: wrong kinds, NaN, unknown words, out of range.

    Messages name a setting as `group.name`, or as its flag. Fields that may hold neither numbers
    nor choices nor settings are not checked.
    """
    cls: Hint = type(config)  # mypy thinks that it may not be hashable
    for name, members in declared(cls).items():
        value = getattr(config, name)
        shown = f"--{name.replace('_', '-')}" if flags else f"{group}.{name}".removeprefix(".")
        fitting = [member for member in members if _fits(value, member.kind)]
        if not fitting:
            kinds = (_words(member.kind) or _class_name(member.kind) for member in members)
            words = " or ".join(filter(None, kinds))
            brackets = f"; write {value.__name__}()" if isinstance(value, type) else ""
            raise ConfigError(f"{shown} must be {words}, got {value!r}{brackets}")
        for subject, number in _numbers(shown, value):
            within = fitting[0].within
            if within is not None and number not in within:
                got = value if isinstance(value, Sequence) else number
                words = "be finite" if math.isinf(number) else str(within)
                raise ConfigError(f"{subject} must {words}, got {got!r}")


@cache
def declared(cls: Hint) -> Mapping[str, tuple[Member, ...]]:
    """Return the fields of a dataclass that declare numbers, choices or settings, with kinds."""
    hints = _hints(cls)
    found = {f.name: tuple(_members(hints[f.name])) for f in fields(cls) if f.name in hints}
    return {
        name: several
        for name, several in found.items()
        if any(_words(m.kind) or is_dataclass(m.kind) or methods_of(m.kind) for m in several)
    }


def common(cls: type) -> set[str]:
    """Return the names of the most important fields: those marked, and all of custom classes."""
    marked = {n for n, hint in _hints(cls).items() if COMMON in getattr(hint, "__metadata__", ())}
    own = (base for base in cls.__mro__ if base.__module__.partition(".")[0] != _PACKAGE)
    return marked.union(*(inspect.get_annotations(base) for base in own))


def _hints(cls: type) -> dict[str, Hint]:
    hints: dict[str, Hint] = {}
    for base in reversed(cls.__mro__):
        with suppress(NameError):  # a custom class may name what only type checkers import
            hints |= inspect.get_annotations(base, eval_str=True)
    return hints


def _members(hint: Hint, within: Within | None = None) -> Iterator[Member]:
    if _origin(hint) is Annotated:
        inner, *marks = typing.get_args(hint)
        yield from _members(inner, next((m for m in marks if isinstance(m, Within)), within))
    elif _origin(hint) in {typing.Union, UnionType}:
        for member in typing.get_args(hint):
            yield from _members(member, within)
    else:
        yield Member(hint, within)


def _origin(hint: Hint) -> Hint:
    return typing.get_origin(hint)


def _numbers(name: str, value: object) -> Iterator[tuple[str, float]]:
    """Yield each number of a setting with its name in messages."""
    if isinstance(value, Real):
        yield name, typing.cast("float", value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield from ((f"each of {name}", item) for item in value)
    elif points := getattr(value, "points", ()):  # of a schedule
        yield from ((f"{name} at {steps} environment steps", number) for steps, number in points)


def _fits(value: object, kind: Hint) -> bool:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if kind is int:
        return is_number and isinstance(value, Integral)
    if kind is float:
        return isinstance(value, Real) and is_number and not math.isnan(value)
    if _origin(kind) is Literal:
        return value in typing.get_args(kind)
    if _is_tuple_of_ints(kind):
        return isinstance(value, Sequence) and all(_fits(item, int) for item in value)
    if methods := methods_of(kind):
        return not isinstance(value, type) and all(hasattr(value, name) for name in methods)
    is_class = kind is NoneType or _class_name(kind)
    return isinstance(value, kind) if is_class else not isinstance(value, Real)


def _words(kind: Hint) -> str:
    if _origin(kind) is Literal:
        *some, last = map(str, typing.get_args(kind))
        return f"{', '.join(some)} or {last}"
    if _is_tuple_of_ints(kind):
        return "whole numbers in a tuple"
    return {int: "a whole number", float: "a number"}.get(kind, "")


def _class_name(kind: Hint) -> str:
    """Return the name of a class that is no type of Python, as of schedules and nested settings."""
    if not isinstance(kind, type) or kind is Any or typing.is_typeddict(kind):
        return ""
    if kind.__module__ == "builtins" or (_is_protocol(kind) and not methods_of(kind)):
        return ""
    return f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}"


def _is_protocol(kind: Hint) -> bool:
    return isinstance(kind, type) and getattr(kind, "_is_protocol", False)


def methods_of(kind: Hint) -> set[str]:
    """Return the public names of a protocol; none for other kinds, and if it is only called."""
    bases = kind.__mro__[:-1] if _is_protocol(kind) else ()
    return {name for base in bases for name in vars(base) if not name.startswith("_")}


def _is_tuple_of_ints(kind: Hint) -> bool:
    return _origin(kind) is tuple and typing.get_args(kind) == (int, ...)
