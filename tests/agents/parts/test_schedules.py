"""Schedules: exact values at, between and outside their points; files; what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from asyncrl.agents.parts.schedules import Schedule
from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import from_plain, to_plain
from asyncrl.run.yaml_file import load_yaml, save_yaml

POINTS = ((100, 1.0), (300, 0.5), (1100, 0.1))


@dataclass(frozen=True, kw_only=True)
class Settings:
    rate: float | Schedule = 0.5
    other: float | Schedule | None = None


@pytest.mark.parametrize(
    ("env_steps", "line", "step"),
    [
        (0, 1.0, 1.0),
        (200, 0.75, 1.0),
        (300, 0.5, 0.5),
        (700, 0.3, 0.5),
        (1100, 0.1, 0.1),
        (10**9, 0.1, 0.1),
    ],
)
def test_values_at_between_and_outside_points(env_steps: int, line: float, step: float) -> None:
    assert Schedule(points=POINTS).at(env_steps) == pytest.approx(line, rel=1e-12)
    assert Schedule(points=POINTS, interpolate=False).at(env_steps) == step


def test_settings_come_back_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    settings = Settings(rate=Schedule(points=POINTS, interpolate=False), other=3e-4)
    save_yaml(settings, path)
    assert load_yaml(Settings, path) == settings
    assert from_plain(Settings, to_plain(Settings())) == Settings()


def test_a_person_writes_points_alone(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("rate: {points: [[0, 1e-3], [50, 0]]}\nother: 1e-4\n")
    assert load_yaml(Settings, path) == Settings(rate=Schedule.linear(1e-3, 0.0, 50), other=1e-4)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ((), "at least one point"),
        (((0, 1.0), (0, 2.0)), r"ascending order of environment steps.* got \[0, 0\]"),
        (((-1, 1.0),), r"from 0 or more, got \[-1\]"),
        (((1.5, 1.0),), r"whole numbers, got \[1\.5\]"),
        (((0, 1.0), (7, float("inf"))), r"must be finite, got inf at 7 environment steps"),
    ],
)
def test_what_is_no_schedule_is_refused(points: tuple[tuple[int, float], ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Schedule(points=points)
