"""Declares in a setting's field what it may be: kinds, range, and what 0 means; and reads that.

    batch_size: Count = 128
    hidden: Annotated[Widths, COMMON] = (64, 64)
    tau: Annotated[float, Within("(0, 1]")] = 0.005
    max_lag_s: Annotated[float, Within("[0, inf)", zero="off")] = 0.0

`settings_of` is the only reader of these declarations: checks, files, flags, help and reference are
loops over what it returns. `check_declared` checks a config against it, with one message for each
kind of error. Independent of any particular setting.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from functools import cache
from itertools import pairwise
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, TypeAlias

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


COMMON = object()
"""Marks the most important settings, which the command line's short help shows."""


class Kind(typing.NamedTuple):
    """One of the kinds of values that a setting may have, and the range of its numbers."""

    hint: Hint
    within: Within | None

    def fits(self, value: object) -> bool:
        """Whether an object is of this kind; ranges are not looked at."""
        hint, is_number = self.hint, isinstance(value, Real) and not isinstance(value, bool)
        if hint is int:
            return is_number and isinstance(value, Integral)
        if hint is float:
            return isinstance(value, Real) and is_number and not math.isnan(value)
        if origin_of(hint) is Literal:
            return value in typing.get_args(hint)
        if hint == _INTEGERS:
            return isinstance(value, Sequence) and all(Kind(int, None).fits(one) for one in value)
        if methods := methods_of(hint):
            return not isinstance(value, type) and all(hasattr(value, name) for name in methods)
        is_class = hint is NoneType or _class_name(hint)
        return isinstance(value, hint) if is_class else not isinstance(value, Real)

    @property
    def words(self) -> str:
        """What a value of this kind is, as the end of a sentence with "must be"."""
        if origin_of(self.hint) is Literal:
            *some, last = map(str, typing.get_args(self.hint))
            return f"{', '.join(some)} or {last}" if some else last
        return _WORDS.get(self.hint) or _class_name(self.hint) or _name(self.hint)

    @property
    def is_checked(self) -> bool:
        """Whether there is more to check than that a value is an object of some kind."""
        return (
            self.hint in {int, float, _INTEGERS}
            or origin_of(self.hint) is Literal
            or is_dataclass(self.hint)
            or bool(methods_of(self.hint))
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """What a field of a dataclass declares."""

    name: str
    owner: type
    kinds: tuple[Kind, ...]
    """The kinds of values that it may have, each with the range of its numbers."""

    marks: tuple[object, ...]
    """What annotates it, such as `COMMON`."""

    common: bool
    """Whether it is one of the most important settings: those marked, and all of custom classes."""

    field: dataclasses.Field[Any]

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        missing = dataclasses.MISSING
        return self.field.default is missing and self.field.default_factory is missing

    @property
    def default(self) -> object:
        """The default; None if it is required."""
        if self.field.default_factory is not dataclasses.MISSING:
            return self.field.default_factory()
        return None if self.is_required else self.field.default

    @property
    def is_checked(self) -> bool:
        """Whether it may hold numbers, choices or settings."""
        return any(kind.is_checked for kind in self.kinds)

    @property
    def text(self) -> str:
        """The docstring below the field."""
        return _texts(self.owner).get(self.name, "")

    def check(self, value: object, shown: str) -> None:
        """Raise for a value that is of no declared kind or out of range, under the name `shown`."""
        fitting = [kind for kind in self.kinds if kind.fits(value)]
        if not fitting:
            words = words_of(self.kinds)
            brackets = f"; write {value.__name__}()" if isinstance(value, type) else ""
            raise ConfigError(f"{shown} must be {words}, got {value!r}{brackets}")
        for subject, number in _numbers(shown, value):
            within = fitting[0].within
            if within is not None and number not in within:
                got = value if isinstance(value, Sequence) else number
                words = "be finite" if math.isinf(number) else str(within)
                raise ConfigError(f"{subject} must {words}, got {got!r}")


def check_declared(config: object, group: str = "") -> None:
    """Raise for values that fields do not declare: wrong kinds, NaN, unknown words, out of range.

    Messages name a setting as `group.name`. Fields that may hold neither numbers nor choices nor
    settings are not checked.
    """
    for name, setting in settings_of(type(config)).items():
        if setting.is_checked:
            setting.check(getattr(config, name), f"{group}.{name}".removeprefix("."))


def settings_of(cls: Hint) -> Mapping[str, Setting]:
    """Return the fields with which a dataclass is made, in their order.

    A field whose declaration cannot be read, as of names that only type checkers import, may hold
    anything.
    """
    return _settings_of(cls)


@cache
def _settings_of(cls: Hint) -> Mapping[str, Setting]:
    hints = hints_of(cls)
    custom = [base for base in cls.__mro__ if base.__module__.partition(".")[0] != _PACKAGE]
    common = {name for base in custom for name in inspect.get_annotations(base)}
    found = {}
    for field in dataclasses.fields(cls):
        hint = hints.get(field.name, Any)
        marks = getattr(hint, "__metadata__", ())
        is_common = COMMON in marks or field.name in common
        found[field.name] = Setting(field.name, cls, kinds_of(hint), marks, is_common, field)
    return {name: setting for name, setting in found.items() if setting.field.init}


def kinds_of(hint: Hint, within: Within | None = None) -> tuple[Kind, ...]:
    """Return the members of a declared type, which may be a union."""
    if isinstance(hint, NewType):
        return kinds_of(hint.__supertype__, within)
    if origin_of(hint) is Annotated:
        inner, *marks = typing.get_args(hint)
        return kinds_of(inner, next((m for m in marks if isinstance(m, Within)), within))
    if origin_of(hint) in {typing.Union, UnionType}:
        return tuple(kind for one in typing.get_args(hint) for kind in kinds_of(one, within))
    return (Kind(hint, within),)


def words_of(kinds: Sequence[Kind]) -> str:
    """Say what a value may be, as the end of a sentence with "must be"."""
    *others, last = dict.fromkeys(kind.words for kind in kinds)
    first = ", ".join(others).replace(" or ", ", ")
    return f"{first} or {last}" if first else last


def hints_of(called: Hint) -> dict[str, Hint]:
    """Return the declared types of a class's fields, or of a function's parameters.

    What cannot be read is left out.
    """
    hints: dict[str, Hint] = {}
    for one in reversed(called.__mro__) if isinstance(called, type) else (called,):
        with suppress(NameError, TypeError):  # imported for type checkers only; no Python code
            hints |= inspect.get_annotations(one, eval_str=True)
    return hints


def origin_of(hint: Hint) -> Hint:
    """Return the class of a generic type, None for a plain one."""
    return typing.get_origin(hint)


def methods_of(hint: Hint) -> set[str]:
    """Return the public names of a protocol; none for other kinds, and if it is only called."""
    bases = hint.__mro__[:-1] if _is_protocol(hint) else ()
    return {name for base in bases for name in vars(base) if not name.startswith("_")}


def _numbers(name: str, value: object) -> Iterator[tuple[str, float]]:
    """Yield each number of a setting with its name in messages."""
    if isinstance(value, Real):
        yield name, typing.cast("float", value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield from ((f"each of {name}", one) for one in value)
    elif points := getattr(value, "points", ()):  # of a schedule
        yield from ((f"{name} at {steps} environment steps", number) for steps, number in points)


_PACKAGE = __name__.partition(".")[0]
_INTEGERS = tuple[int, ...]
_WORDS: Mapping[Hint, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    NoneType: "None",
    _INTEGERS: "whole numbers in a tuple",
}


def _class_name(hint: Hint) -> str:
    """Return the name of a class that is no type of Python, as of schedules and nested settings."""
    if not isinstance(hint, type) or hint is Any or typing.is_typeddict(hint):
        return ""
    if hint.__module__ == "builtins" or (_is_protocol(hint) and not methods_of(hint)):
        return ""
    return f"{'an' if hint.__name__[0] in 'AEIO' else 'a'} {hint.__name__}"


def _name(hint: Hint) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _is_protocol(hint: Hint) -> bool:
    return isinstance(hint, type) and getattr(hint, "_is_protocol", False)


@cache
def _texts(cls: type) -> Mapping[str, str]:
    """Return the docstring of each field, also of those that a base class declares."""
    texts: dict[str, str] = {}
    for base in filter(is_dataclass, reversed(cls.__mro__)):
        with suppress(OSError, TypeError):  # the source is not at hand
            texts |= texts_in(inspect.getsource(base))
    return texts


def texts_in(source: str) -> Iterator[tuple[str, str]]:
    """Yield the documented fields of a class, given its source, and their docstrings."""
    tree = typing.cast("ast.ClassDef", ast.parse(textwrap.dedent(source)).body[0])
    for node, after in pairwise(tree.body):
        match node, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as text)),
            ):
                yield name, inspect.cleandoc(text)
