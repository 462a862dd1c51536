"""`asyncrl schema`: the JSON schema of `config.yaml`, by which editors complete and check it.

Made from the same declarations that check a file when it is loaded.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import math
import textwrap
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

from asyncrl.cli.output import show
from asyncrl.cli.parser import parsed
from asyncrl.core.declared import Within
from asyncrl.training.presets import PRESETS, REPLAYS
from asyncrl.training.run_config import RunConfig

Schema = dict[str, Any]
Hint = Any  # what a field is declared as; Python has no common type for these

_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string"}
_KINDS[NoneType] = "null"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SchemaArguments:
    """Print the JSON schema of config.yaml, for editors."""


def parse(argv: list[str]) -> SchemaArguments:
    """Parse the command line."""
    return parsed(SchemaArguments, prog="asyncrl schema", args=argv)


def run(_: SchemaArguments) -> int:
    """Print the schema, and return the exit code."""
    show(json.dumps(schema_of_runs(), indent=1))
    return 0


def schema_of_runs() -> Schema:
    """Return the schema of a file for `asyncrl train --config`."""
    started = [make() for make in PRESETS.values()]
    schema = _of_class(RunConfig)
    for name, more in (("agent", ()), ("replay", REPLAYS.values())):
        kinds = dict.fromkeys([*(type(getattr(one, name)) for one in started), *more])
        schema["properties"][name] |= _open(list(kinds))
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "asyncrl run", **schema}


def _open(kinds: Sequence[type]) -> Schema:
    """Return the schema of settings whose line `type` says which they are; others may be custom."""
    named = {f"{kind.__module__}:{kind.__name__}": kind for kind in kinds}
    known = [
        {
            "if": {"properties": {"type": {"const": path}}, "required": ["type"]},
            "then": _of_class(kind),
        }
        for path, kind in named.items()
    ]
    kind_of = {"type": "string", "examples": [*named], "description": "`module:Class`."}
    return {"type": "object", "properties": {"type": kind_of}, "allOf": known}


def _of_class(cls: Hint) -> Schema:
    hints, texts = typing.get_type_hints(cls, include_extras=True), docstrings(cls)
    properties: Schema = {"type": {"type": "string"}}
    for field in dataclasses.fields(cls):
        text = {"description": texts[field.name]} if field.name in texts else {}
        properties[field.name] = {**_of(hints[field.name]), **text, **_default(field)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _of(hint: Hint, within: Within | None = None) -> Schema:
    """Return the schema of what a field is declared as; an empty one allows anything."""
    origin: Hint = typing.get_origin(hint)
    inner = typing.get_args(hint)
    if origin is typing.Annotated:
        return _of(inner[0], next((m for m in inner[1:] if isinstance(m, Within)), within))
    if origin in {typing.Union, UnionType}:
        return {"anyOf": [_of(member, within) for member in inner]}
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin in {tuple, list, Sequence}:
        return {"type": "array", "items": _of(inner[0], within)}
    if dataclasses.is_dataclass(hint) and not hasattr(hint, "from_data"):
        return _of_class(hint)
    return _of_plain(origin or hint, within)


def _of_plain(kind: Hint, within: Within | None) -> Schema:
    if kind in {dict, Mapping}:
        return {"type": "object"}
    number = within if kind in {int, float} else None
    return ({"type": _KINDS[kind]} if kind in _KINDS else {}) | (_range(number) if number else {})


def _range(within: Within) -> Schema:
    low, high = within.ends
    words: Schema = {}
    if math.isfinite(low):
        words["exclusiveMinimum" if within.interval[0] == "(" else "minimum"] = low
    if math.isfinite(high):
        words["exclusiveMaximum" if within.interval[-1] == ")" else "maximum"] = high
    return {"anyOf": [words, {"const": 0}]} if within.zero and low >= 0 else words


def _default(field: dataclasses.Field[Any]) -> Schema:
    """Return a field's default, if it is a plain value."""
    plain = isinstance(field.default, bool | int | float | str | None)
    return {"default": field.default} if plain else {}


@cache
def docstrings(cls: type) -> dict[str, str]:
    """Return the docstring of each field, also of those that a base class declares."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        if not dataclasses.is_dataclass(base):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        body = typing.cast("ast.ClassDef", tree.body[0]).body
        for node, after in itertools.pairwise(body):
            match node, after:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str() as text)),
                ):
                    found[name] = inspect.cleandoc(text)
    return found
