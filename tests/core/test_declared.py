"""What fields declare is what they take: kinds, ranges, schedules, sentences."""

from __future__ import annotations

import math
import re
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from asyncrl.core.declared import (
    CountOrOff,
    Finite,
    NotNegative,
    Positive,
    Share,
    Widths,
    Within,
    check_declared,
)
from asyncrl.core.errors import ConfigError

if typing.TYPE_CHECKING:
    from decimal import Decimal


@dataclass(frozen=True)
class Points:
    points: tuple[tuple[int, float], ...]


class Form(typing.TypedDict):
    slope: float


@dataclass(frozen=True, kw_only=True)
class Settings:
    count: int = 1
    share: float | None = None
    rate: float | str = 0.5
    kind: Literal["a", "b", "c"] = "a"
    on: bool = True
    name: str = ""
    pace: Annotated[float, Within("[0, 1)", zero="never")] = 0.5
    interval: Annotated[int, Within("[1, inf)", why="nothing would ever come")] = 1
    ratio: Annotated[float, Within("(1, inf)", zero="off")] = 0.0
    clip: CountOrOff = 0
    offset: Finite = 0.0
    weight: NotNegative | None = None
    mix: Share = 0.5
    hidden: Widths = (64, 64)
    scheduled: Positive | Annotated[Points, Within("[0, inf)")] = 1.0
    unclear: int | Any = 0
    formed: float | Form = 0.0

    def __post_init__(self) -> None:
        check_declared(self, "mine")


@pytest.mark.parametrize(
    "settings",
    [
        {"count": np.int64(3), "share": np.float32(0.5)},
        {"share": 1, "rate": 2, "kind": "c"},
        {"on": 1, "name": None},
        {"pace": 0, "ratio": 1.5, "clip": 0, "weight": 0.0, "mix": 1},
        {"scheduled": Points(((0, 1.0), (10, 0.0)))},
        {"unclear": "much", "formed": {"slope": 0.5}},
    ],
)
def test_what_fits_and_what_is_neither_number_nor_choice_is_taken(settings: Any) -> None:
    Settings(**settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"count": 2.0}, "mine.count must be a whole number, got 2.0"),
        ({"kind": "d"}, "mine.kind must be a, b or c, got 'd'"),
        ({"interval": 0}, "mine.interval must be at least 1 (nothing would ever come), got 0"),
        ({"ratio": 1.0}, "mine.ratio must be 0 (off) or more than 1, got 1.0"),
        ({"offset": math.inf}, "mine.offset must be finite, got inf"),
        ({"hidden": 64}, "mine.hidden must be whole numbers in a tuple, got 64"),
        ({"hidden": (64, 0)}, "each of mine.hidden must be at least 1, got (64, 0)"),
        ({"scheduled": "1.0"}, "mine.scheduled must be a number or a Points, got '1.0'"),
        (
            {"scheduled": Points(((0, 1.0), (9, -1.0)))},
            "mine.scheduled at 9 environment steps must be 0 or more, got -1.0",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(settings: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings(**settings)
    assert str(refused.value) == sentence


def test_class_whose_declarations_python_cannot_read_is_checked_as_far_as_it_can() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(Settings):
        price: Decimal | None = None

    assert Mine(price=None).price is None
    with pytest.raises(ConfigError, match=re.escape("mine.count must be a whole number")):
        Mine(count=2.0)  # type: ignore[arg-type]
