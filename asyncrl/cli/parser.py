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

T = TypeVar("T")

_FLOWING = ConstructorRegistry()
"""Joins the lines of help texts. tyro keeps those of a docstring whose other lines are indented."""

_WITHIN_PARAGRAPH = re.compile(r"(?<!\n)\n(?![\n*-])")


def parsed(form: type[T], *, prog: str, args: Sequence[str], **options: Any) -> T:  # noqa: ANN401
    """Return the dataclass that arguments describe; `options` are those of `tyro.cli`.

    Exits with code 0 after printing help, and with 2 after printing what is wrong.
    """
    with _FLOWING, redirect_stdout(results()):
        made: T = tyro.cli(form, prog=prog, args=args, **options)
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
