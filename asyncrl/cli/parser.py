"""Parses arguments into dataclasses, and prints their help. Does not know what they mean."""

from __future__ import annotations

import dataclasses
import io
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
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

    Exits with code 0 after printing help, and with 2 after printing which value cannot be read. An
    unknown flag raises `ConfigError`, with near ones among the names of `settings`, by default of
    the form. So does a value that its class refuses, unless a flag is unknown: that value may need
    what this flag was meant to set.
    """
    settings, said = settings or [form], io.StringIO()
    refused: ConfigError | None = None
    try:
        with _FLOWING, redirect_stdout(results()), redirect_stderr(said):
            made, unknown = tyro.cli(
                form, prog=prog, args=args, return_unknown_args=True, **options
            )
    except (ConfigError, SystemExit) as ended:
        refused = _refused(ended)
        if refused is None:
            raise
        from asyncrl.cli.flags import unknown_flags, unknown_in  # imports agents

        if unknown := unknown_in(args, settings):
            raise ConfigError(unknown_flags(unknown, settings, prog, lists)) from None
        raise refused from None
    finally:
        if refused is None:
            sys.stderr.write(said.getvalue())
    if unknown:
        from asyncrl.cli.flags import unknown_flags  # imports agents

        raise ConfigError(unknown_flags(unknown, settings, prog, lists))
    return made  # type: ignore[no-any-return]


def _refused(ended: BaseException) -> ConfigError | None:
    """Return the error of a class that refused its values, on which the parser ends the process.

    What a single flag cannot mean is left to the parser, which names the flag and shows its help.
    """
    if isinstance(ended, ConfigError):
        return ended
    context = ended.__context__
    if context is not None and isinstance(getattr(context, "arg", None), str):
        context = context.__context__  # `arg` is the name of a group of flags
    return context if isinstance(context, ConfigError) else None


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
