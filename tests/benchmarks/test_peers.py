from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from asyncrl.metrics.machine import machine
from benchmarks.peers import cleanrl_style, ours
from benchmarks.peers.compare import still_valid
from benchmarks.peers.interface import Request
from benchmarks.peers.results import OURS, Measurement, Quantity, find, render, shown

DQN_SPEED = Quantity(stage="updates-dqn", env="CartPole-v1")
DQN_TIME = Quantity(stage="score-dqn", env="CartPole-v1")
MACHINE = machine()


def taken(
    side: str, quantity: Quantity, number: int, value: float | None, **kw: Any
) -> Measurement:
    settings: dict[str, Any] = {
        "failed": False,
        "version": "1.2",
        "note": "",
        "date": "2030-01-02",
        "commit": "abc1234",
        "load_before": 0.5,
        "identity": "code",
        "wall_s": 4.0,
        **kw,
    }
    return Measurement(
        side=side, stage=quantity.stage, env=quantity.env, round=number, value=value, **settings
    )


def rounds(side: str, quantity: Quantity, *values: float | None) -> list[Measurement]:
    return [taken(side, quantity, number, value) for number, value in enumerate(values)]


def test_a_rate_is_compared_round_by_round():
    found = find(
        rounds("sb3", DQN_SPEED, 10.0, 20.0, 40.0) + rounds(OURS, DQN_SPEED, 20.0, 60.0, 40.0),
        DQN_SPEED,
    )
    assert list(found) == [OURS, "sb3"]
    assert found["sb3"].ahead_by_round == [2.0, 3.0, 1.0]
    assert found["sb3"].ahead == 2.0


def test_a_time_is_compared_by_its_median_and_less_is_better():
    found = find(
        rounds("sb3", DQN_TIME, 9.0, None, 6.0) + rounds(OURS, DQN_TIME, 3.0, 3.0, 1.0), DQN_TIME
    )
    assert found["sb3"].median == 9.0
    assert found["sb3"].ahead == 3.0
    assert found["sb3"].values == [9.0, math.inf, 6.0]


def test_only_rounds_beside_asyncrl_at_one_clean_commit_are_shown():
    ours = rounds(OURS, DQN_SPEED, *[2.0] * 5)
    theirs = rounds("sb3", DQN_SPEED, *[1.0] * 5)
    assert shown([*ours, *theirs]) == [*ours, *theirs]
    assert shown([*ours, *theirs[:4]]) == ours, "too few rounds"
    assert shown([*ours, *theirs[:4], replace(theirs[4], commit="1234abc")]) == ours
    assert shown([replace(m, commit="abc1234-dirty") for m in [*ours, *theirs]]) == []
    assert "Nothing is shown" in render(MACHINE, theirs)


def test_a_round_is_measured_again_if_the_code_of_any_side_has_changed():
    before = [*rounds(OURS, DQN_SPEED, 1.0, 2.0), *rounds("sb3", DQN_SPEED, 3.0, 4.0)]
    before[3] = replace(before[3], identity="older code")
    other = rounds("sb3", DQN_TIME, 5.0)
    now = {(side, DQN_SPEED): "code" for side in (OURS, "sb3")}
    assert still_valid([*before, *other], now) == [before[0], before[2], *other]


@pytest.mark.behaviour(number=68)
@pytest.mark.parametrize("stage", ["updates-sac", "updates-dqn"])
def test_ours_and_the_plain_loops_report_what_they_measure(stage: str) -> None:
    env = "CartPole-v1" if stage == "updates-dqn" else "HalfCheetah-v5"
    asked = Request(stage=stage, env=env, seconds=0.01, seed=0, settings={"rows": 1024})
    assert cleanrl_style.updates(asked).turn() == 1
    if stage == "updates-dqn":
        assert ours.updates(asked)["value"] > 0
