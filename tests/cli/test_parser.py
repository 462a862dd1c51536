"""Help texts flow: line breaks of docstrings are not those of the terminal."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import pytest

from asyncrl.cli.parser import parsed
from asyncrl.core.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    """Settings of a part."""

    speed: float = 1.0
    """Steps per second of the part,
    as many as fit.

    A second paragraph."""


@dataclass(frozen=True)
class Form:
    """Do it."""

    seconds: int = 3
    """Seconds until the end,
    or 0 for none."""

    inner: Inner = field(default_factory=Inner)


def test_help_joins_the_lines_of_a_paragraph(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit, match="0"):
        parsed(Form, prog="it", args=["--help"])
    shown = capsys.readouterr().out
    assert "Seconds until the end, or 0 for none. (default: 3)" in shown
    assert "Steps per second of the part, as many as fit." in shown
    assert "as many as fit. A second" not in shown, "paragraphs stay apart"


@dataclass(frozen=True)
class Talking:
    """Do it."""

    seconds: int = 3

    def __post_init__(self) -> None:
        sys.stderr.write("watch out")
        if self.seconds < 0:
            raise ConfigError("seconds must not be negative")
        if self.seconds == 0:
            raise OSError("no clock")


def test_what_is_said_meanwhile_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    parsed(Talking, prog="it", args=["--seconds", "4"])
    assert "watch out" in capsys.readouterr().err
    with pytest.raises(OSError, match="no clock"):
        parsed(Talking, prog="it", args=["--seconds", "0"])
    assert "watch out" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="negative"):
        parsed(Talking, prog="it", args=["--seconds", "-1"])
    assert not capsys.readouterr().err


def test_arguments_are_parsed_as_before() -> None:
    form = parsed(Form, prog="it", args=["--seconds", "5", "--inner.speed", "2.5"])
    assert form == Form(5, Inner(2.5))
