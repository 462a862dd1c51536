from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asyncrl.metrics.machine import machine
from benchmarks.common import ROOT
from benchmarks.peers import cleanrl_style, compare, ours
from benchmarks.peers.compare import SIDES, Plan, still_valid
from benchmarks.peers.interface import STAGES, Request, Stage, Training, Work, measure_once
from benchmarks.peers.results import LABELS, OURS, Measurement, Quantity, find, render, shown

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


def plan(**kw: Any) -> Plan:
    settings: dict[str, Any] = {"sides": (OURS, "sb3"), "stages": ("updates-sac", "updates-dqn")}
    return Plan(rounds=2, seconds=1.0, **{**settings, **kw})


def test_all_sides_of_a_stage_are_measured_before_the_next_and_then_again():
    order = [(number, quantity.stage, side) for number, quantity, side in plan().steps()]
    once = [(stage, side) for stage in ("updates-sac", "updates-dqn") for side in (OURS, "sb3")]
    assert order == [(number, *step) for number in range(2) for step in once]


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


def test_a_sweep_keeps_the_fastest_and_what_was_found_before(tmp_path, monkeypatch):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"sampling": {"torchrl": {"CartPole-v1": {"envs": 3}}}}))

    def ask(_side: str, _quantity: Quantity, _seconds: float, *, settings: str, **_: object) -> Any:
        envs = json.loads(settings).get("envs", 0)
        return ({}, "it failed") if envs == 128 else ({"value": envs}, "")

    monkeypatch.setattr(compare, "ask", ask)
    compare.sweep(plan(stages=("sampling",), sides=("sb3",)), path)
    found = json.loads(path.read_text())["sampling"]
    assert found["sb3"]["CartPole-v1"] == {"processes": False, "envs": 64}
    assert found["torchrl"] == {"CartPole-v1": {"envs": 3}}


def test_every_side_has_its_script_and_a_label():
    assert set(SIDES) == set(LABELS)
    for side in SIDES.values():
        assert side.sources()
        assert set(side.stages) <= set(STAGES)
        if side.venv:
            assert (ROOT / "benchmarks/peers/requirements" / f"{side.venv}.txt").exists()


@pytest.mark.behaviour(number=68)
@pytest.mark.parametrize("stage", ["updates-sac", "updates-dqn"])
def test_ours_and_the_plain_loops_report_what_they_measure(stage: str) -> None:
    env = "CartPole-v1" if stage == "updates-dqn" else "HalfCheetah-v5"
    asked = Request(stage=stage, env=env, seconds=0.01, seed=0, settings={"rows": 1024})
    assert cleanrl_style.updates(asked).turn() == 1
    if stage == "updates-dqn":
        assert ours.updates(asked)["value"] > 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["per", "--seconds", "0.01"], {"note": "slow", "unit": "batches/s", "settings": {"a": 1}}),
        (["env", "--settings", '{"a": 2}'], {"value": 5.0, "settings": {"a": 2}}),
        (
            ["score-sac", "--env", "CartPole-v1", "--env-steps", "7"],
            {"env_steps": 7, "opt_steps": 14, "version": "1.2"},
        ),
    ],
)
def test_a_script_prints_one_measurement(
    arguments: list[str],
    expected: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    idle = Work(turn=lambda: 1, warm_up_s=0.0, note="slow")
    training = Training(run=lambda steps: 2 * steps, act=lambda obs: np.zeros(len(obs), np.int64))
    stages = {
        "per": Stage(lambda _: idle, {"a": 1}),
        "env": Stage(lambda _: {"value": 5.0}, {"a": 1}),
        "score-sac": Stage(lambda _: training),
    }
    monkeypatch.setattr(sys, "argv", ["script", *arguments])
    measure_once("peer", "1.2", "A peer.", stages)
    assert json.loads(capsys.readouterr().out).items() >= expected.items()
