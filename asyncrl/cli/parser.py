"""Parses arguments into dataclasses, and prints their help. Does not know what they mean."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Any, TypeVar

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from asyncrl.cli.output import results
from asyncrl.core.errors import ConfigError

T = TypeVar("T")

_FLOWING = ConstructorRegistry()
"""Joins the lines of help texts. tyro keeps those of a docstring whose other lines are indented."""

_WITHIN_PARAGRAPH = re.compile(r"(?<!\n)\n(?![\n*-])")


def parsed(
    form: type[T],
    *,
    prog: str,
    args: Sequence[str],
    settings: Sequence[object] = (),
    lists: str = "--help",
    **options: Any,  # noqa: ANN401
) -> T:
    """Return the dataclass that arguments describe; `options` are those of `tyro.cli`.

    Exits with code 0 after printing help, and with 2 after printing what is wrong. An unknown flag
    raises `ConfigError`, with near ones among the names of `settings`, by default of the form.
    """
    made: T
    with _FLOWING, redirect_stdout(results()):
        made, unknown = tyro.cli(form, prog=prog, args=args, return_unknown_args=True, **options)
    if unknown:
        from asyncrl.cli.flags import unknown_flags  # imports agents

        raise ConfigError(unknown_flags(unknown, settings or [form], prog, lists))
    return made


_pending: list[StructTypeInfo] = []


@_FLOWING.struct_rule
def _flowing_rule(info: StructTypeInfo) -> StructConstructorSpec | None:
    if any(info is other for other in _pending):
        return None  # asked for by the lines below: the other rules answer
    _pending.append(info)
    try:
        found = ConstructorRegistry.get_struct_spec(info)
    finally:
        _pending.pop()
    if not isinstance(found, StructConstructorSpec):
        return None
    return dataclasses.replace(found, fields=tuple(map(_flowing, found.fields)))


def _flowing(field: StructFieldSpec) -> StructFieldSpec:
    return dataclasses.replace(field, helptext=lambda: _joined(field.helptext))


def _joined(text: str | Callable[[], str | None] | None) -> str | None:
    text = text() if callable(text) else text
    return text and _WITHIN_PARAGRAPH.sub(" ", text)
