"""Help texts flow: line breaks of docstrings are not those of the terminal."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from asyncrl.cli.parser import parsed


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


def test_arguments_are_parsed_as_before() -> None:
    form = parsed(Form, prog="it", args=["--seconds", "5", "--inner.speed", "2.5"])
    assert form == Form(5, Inner(2.5))
