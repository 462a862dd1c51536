"""Writes the page of the public names, from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import asyncrl
from asyncrl.core.declared import texts_in

TITLES = {
    "run": "Training",
    "envs": "Environments",
    "agents": "Agents in torch",
    "learner": "The learner",
    "actor": "Actors",
    "extensions": "Several learners, and recorded runs",
    "fleet": "Actors and hosts",
    "replay": "Replay",
    "recorders": "Recorders",
    "core": "Contracts and errors",
}
"""Rooms of the package -> headings of the page."""

_WIDTH = 88
_TELL_NOTHING = (Exception, dict)
"""Kinds of classes whose constructors take whatever they are given."""


def public_names() -> dict[str, Any]:
    """Return the public names of the package, and what they are."""
    return {name: getattr(asyncrl, name) for name in getattr(asyncrl, "__all__")}  # noqa: B009


def api_page() -> str:
    """Return the page."""
    parts = [
        "# API",
        "`from asyncrl import ...` gives the names on this page. Everything else is imported from "
        "the module where it lives, for example `from asyncrl.agents.dqn import DQNConfig`.",
    ]
    names = public_names()
    for room, title in TITLES.items():
        parts.append(f"## {title}")
        for name, item in names.items():
            if item.__module__.split(".")[1] == room:
                parts += _entry(name, item)
    parts.append("## Tests of your own parts")
    parts += _entry("check_agent", import_module("asyncrl.testing").check_agent)
    return "\n\n".join(parts) + "\n"


def _entry(name: str, item: Any) -> Iterator[str]:  # noqa: ANN401  # a class or a function
    yield f"### {name}"
    yield f"`{item.__module__}`"
    if not (inspect.isclass(item) and issubclass(item, _TELL_NOTHING)):
        yield _code(_signature(name, item))
    yield _described(inspect.getdoc(item) or "")
    if inspect.isclass(item):
        fields = dict(_fields(item))
        if fields:
            yield "\n".join(f"* `{field}`: {text}" for field, text in fields.items())
        for method, function in _methods(item):
            yield f"**`{name}.{method}`**"
            if not isinstance(function, property):
                yield _code(_signature(method, function))
            yield _described(inspect.getdoc(function) or "")


def _fields(cls: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Yield the documented fields of a class and its bases."""
    for base in getattr(cls, "__orig_bases__", ()) or cls.__bases__:
        if getattr(base, "__module__", "").startswith("asyncrl."):
            yield from _fields(base)
    for name, text in texts_in(inspect.getsource(cls)):
        yield name, " ".join(text.split())


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the documented public methods and properties, also those of base classes here."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("asyncrl."):
            found |= vars(base)
    for name, value in found.items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        shown = inspect.isfunction(function) or isinstance(function, property)
        if shown and not name.startswith("_") and inspect.getdoc(function):
            yield name, function


def _signature(name: str, function: Any) -> str:  # noqa: ANN401
    """Return how to call it: on one line, or with one argument on each."""
    signature = inspect.signature(function)
    arguments: list[str] = []
    for one in signature.parameters.values():
        if one.name in {"self", "cls"}:
            continue
        if one.kind is one.KEYWORD_ONLY and not any(a.startswith("*") for a in arguments):
            arguments.append("*")
        arguments.append(_argument(one))
    result = _hint(signature.return_annotation)
    end = f") -> {result}" if result not in {"", "None"} else ")"
    short = f"{name}({', '.join(arguments)}{end}"
    if len(short) <= _WIDTH:
        return short
    return f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + end


def _argument(one: inspect.Parameter) -> str:
    text = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(one.kind.name, "") + one.name
    hint = _hint(one.annotation)
    text += f": {hint}" if hint else ""
    default: object = one.default
    if default is one.empty:
        return text
    plain = default is None or isinstance(default, str | int | float | tuple)
    # The text of other objects would be long, or differ from run to run.
    return f"{text} {'= ' if hint else '='}{repr(default) if plain else '...'}"


def _hint(annotation: Any) -> str:  # noqa: ANN401
    """Return a type hint without what only the reader of settings needs."""
    if annotation is inspect.Signature.empty:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    if annotated := re.fullmatch(r"Annotated\[(.*), [^,]*\]", text):
        text = annotated[1]
    return text


def _code(text: str) -> str:
    return f"```py\n{text}\n```"


def _described(text: str) -> str:
    """Return a docstring as Markdown: arguments and attributes as lists."""

    def as_list(section: re.Match[str]) -> str:
        title, body = section[1], inspect.cleandoc(section[2])
        body = re.sub(r"\n {4,}", " ", body)
        items = re.sub(r"^\*{0,2}(\w+): ", r"* `\1`: ", body, flags=re.MULTILINE)
        return f"{title}:\n\n{items}\n"

    section = re.compile(r"^(Args|Attributes):\n((?:    .*\n|\n)*(?:    .*))$", re.MULTILINE)
    return section.sub(as_list, text)
