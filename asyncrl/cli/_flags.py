"""Errors about settings name fields, as Python code does; here they are told as flags, too."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, cast

__all__ = ["as_flags", "naming_flags"]

_GROUPS = {
    "agent": "agent",
    "books": "trainer.books",
    "evaluation": "evaluation",
    "limiter": "limiter",
    "play": "evaluation.play",
    "proxy": "proxy",
    "replay": "replay",
    "segment": "segment",
    "supervision": "supervision",
    "trainer": "trainer",
    "transport": "transport",
}
"""What settings begin with in errors -> what their flags begin with."""

_SETTING = re.compile(rf"(?<![\w.\-/])({'|'.join(_GROUPS)})((?:\.[a-z][a-z0-9_]*)+)\b(?![(:/])")
_STYLES = re.compile(r"\x1b\[[0-9;]*m")


def as_flags(text: str) -> str:
    """Return the flags of the settings that a text names, as one to be added; "" if none is."""
    found = [
        _GROUPS[group] + rest
        for group, rest in _SETTING.findall(text)
        if not rest.endswith((".py", ".yaml"))
    ]
    flags = [f"--{name.replace('_', '-')}" for name in dict.fromkeys(found)]
    if not flags:
        return ""
    return f"as {'a flag' if len(flags) == 1 else 'flags'}: {', '.join(flags)}"


@contextmanager
def naming_flags() -> Iterator[None]:
    """Add a line to what the parser of flags writes about settings that it could not take."""
    heard = _Heard(sys.stderr)
    sys.stderr = cast("TextIO", heard)
    try:
        yield
    except SystemExit as ended:
        if ended.code and (flags := as_flags(_STYLES.sub("", heard.text))):
            heard.stream.write(f"{flags}\n")
        raise
    finally:
        sys.stderr = heard.stream


class _Heard:
    """A stream that remembers what went through it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return self.stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)
