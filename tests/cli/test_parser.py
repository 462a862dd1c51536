"""Command lines are read by what dataclasses declare, and help shows what can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.parts.exploration import EpsilonGreedy, EpsilonLadder, Softmax
from asyncrl.agents.parts.schedules import Rate, Schedule
from asyncrl.cli import train
from asyncrl.cli.parser import POSITIONAL, Alias, parsed
from asyncrl.core.declared import Count, Share
from asyncrl.core.errors import ConfigError
from asyncrl.run.presets import PRESETS, preset


@dataclass(frozen=True, kw_only=True)
class Inner:
    """Settings of a part."""

    speed: float = 1.0
    """Steps per second of the part,
    as many as fit.

    A second paragraph."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """Do it."""

    run_dirs: Annotated[tuple[Path, ...], POSITIONAL]
    output: Annotated[Path | None, Alias("-o")] = None
    seconds: Count = 3
    """Seconds until the end,
    or 0 for none."""

    share: Share | None = None
    quiet: bool = True
    lambda_: float = 0.9
    names: tuple[str, ...] = ()
    widths: tuple[int, ...] = (64, 64)
    options: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    kind: Literal["a", "b"] | None = None
    rate: Rate = 0.5
    inner: Inner = field(default_factory=Inner)


def form(words: str) -> Form:
    return parsed(Form, prog="it", args=shlex.split(words))


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("", {}),
        ("-o x --seconds 2e1", {"output": Path("x"), "seconds": 20}),
        ("--no-quiet --output=y --output None", {"quiet": False, "output": None}),
        ("--quiet more --share -0.0 --share=0.25", {"share": 0.25}),
        ("--lambda_ 1 --names --widths", {"lambda_": 1.0, "widths": ()}),
        ("--lambda=0.5 --names 1 'b c' --widths 3 4", {"lambda_": 0.5, "names": ("1", "b c")}),
        ("--options a 1 b True c 2.0 d x", {"options": {"a": 1, "b": True, "c": 2.0, "d": "x"}}),
        ("--inner.speed -3 --kind b", {"inner": Inner(speed=-3.0), "kind": "b"}),
        ("--rate 0:3e-4,1e6:0", {"rate": Schedule(points=((0, 3e-4), (1_000_000, 0.0)))}),
        (
            "--rate steps,0:1,500:0.1",
            {"rate": Schedule(points=((0, 1.0), (500, 0.1)), interpolate=False)},
        ),
    ],
)
def test_words_become_settings(words: str, settings: dict[str, Any]) -> None:
    made = form(f"here there {words}")
    assert made.run_dirs[:2] == (Path("here"), Path("there")), "words that belong to no flag"
    assert made.run_dirs[2:] == (Path("more"),) * ("more" in words)
    assert {name: getattr(made, name) for name in settings} == settings
    if "rate" in settings:
        assert Schedule.parse(str(made.rate)) == made.rate


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "RUN_DIR"),
        ("x --seconds", r"--seconds needs a value.*INT"),
        ("x --seconds 0", "--seconds must be at least 1, got 0"),
        ("x --seconds 1.5", "--seconds: .*whole number.*'1.5'"),
        ("x --quiet=maybe", "--quiet: .*true or false.*'maybe'"),
        ("x --widths 3 y", "--widths.1: .*whole number.*'y'"),
        ("x --options a", "--options .*pairs.*got a"),
        ("x --kind c", "--kind: .*a, b or None.*'c'"),
        ("x --rate 0:x", "--rate: .*points.*'0:x'"),
        ("x --inner.sped 1", r"--inner.sped \(did you mean --inner.speed\?\)"),
    ],
)
def test_what_cannot_be_read_is_refused_by_flag_and_value(words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        form(words)


def test_help_joins_the_lines_of_a_paragraph(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        form("--help")
    shown = capsys.readouterr().out
    assert "usage: it RUN_DIR ... [OPTIONS]" in shown
    assert "Seconds until the end, or 0 for none. (default: 3)" in shown
    assert "Steps per second of the part, as many as fit.\n" in shown, "paragraphs stay apart"
    assert "-o, --output PATH|None" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_group_may_be_of_several_classes() -> None:
    start = preset("dqn").agent
    assert isinstance(start, DQNConfig)
    ladder = start.exploration
    assert isinstance(ladder, EpsilonLadder)
    for words, expected in (
        ("--agent.exploration.temperature 2 --agent.exploration softmax", Softmax(temperature=2.0)),
        ("--agent.exploration epsilon-greedy", EpsilonGreedy()),
        ("--agent.exploration epsilon-ladder", ladder),
        ("--agent.exploration.base 0.3", replace(ladder, base=0.3)),
        ("--agent.noisy --agent.exploration None", None),
    ):
        agent: Any = train.parse(["dqn", *words.split()]).config.agent
        assert agent.exploration == expected
    with pytest.raises(ConfigError, match=r"--agent\.exploration must be one of .*'greedy'"):
        train.parse(["dqn", "--agent.exploration", "greedy"])


_MODES = ("dqn --launcher ray", "dqn --inference server", "dqn --mode sync")


@pytest.mark.parametrize("command", [*PRESETS, *_MODES])
def test_every_flag_that_help_shows_takes_its_own_default(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        train.parse([*command.split(), "--help-all"])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    words: list[str] = []
    for block in re.split(r"\n  (?=--)", shown)[1:]:
        text = " ".join(block.partition("\n\n")[0].split())
        flag, _, no = re.match(r"(--[\w.-]+)(, (--[\w.-]+))?", text).groups()  # type: ignore[union-attr]
        for default in re.findall(r".*\(default: (.*?)\)", text):
            words += [no if default == "False" else flag] if no else [flag, *shlex.split(default)]
    asked = [*command.split(), *(["--data", "x"] if "--mode offline" in " ".join(words) else [])]
    assert len(words) > 90
    assert train.parse([asked[0], *words, *asked[1:]]).config == train.parse(asked).config
