"""Help texts flow: line breaks of docstrings are not those of the terminal."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, field

import pytest

from asyncrl.cli import train
from asyncrl.cli.parser import parsed
from asyncrl.core.errors import ConfigError
from asyncrl.training.presets import preset


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


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_every_flag_that_help_shows_takes_its_own_default(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        train.parse([name, "--help-all"])
    words = []
    for block in re.split(r"\n  (?=--)", capsys.readouterr().out)[1:]:
        text = " ".join(block.partition(" ---")[0].split())
        flag, _, no = re.match(r"(--[\w.-]+)(, (--[\w.-]+))?", text).groups()  # type: ignore[union-attr]
        for default in re.findall(r".*\(default: (.*?)\)", text):
            words += [no if default == "False" else flag] if no else [flag, *shlex.split(default)]
    assert len(words) > 200
    assert train.parse([name, *words]).config == preset(name)
