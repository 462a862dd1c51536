from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.common import ROOT
from benchmarks.peers import cleanrl_style, compare, ours
from benchmarks.peers.compare import SIDES, Plan, settled, still_valid
from benchmarks.peers.interface import STAGES, Request, Stage, Training, Work, measure_once
from benchmarks.peers.results import (
    LABELS,
    OURS,
    Measurement,
    Quantity,
    find,
    load_measurements,
    render,
    save_measurements,
    shown,
)

DQN_SPEED = Quantity(stage="updates-dqn", env="CartPole-v1")
DQN_TIME = Quantity(stage="score-dqn", env="CartPole-v1")
MACHINE = {
    "processor": "a processor",
    "cores": 2,
    "python": "3.11",
    "torch": "2",
    "numpy": "2",
    "gymnasium": "1",
}


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


def test_a_side_is_asked_only_for_what_it_can_do():
    sides = {side for _, _, side in plan(sides=tuple(SIDES), stages=("per",)).steps()}
    assert sides == {OURS, "torchrl", "cpprb"}


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


def test_what_failed_has_no_number_and_its_reason_is_reported():
    failed = taken("sb3", DQN_SPEED, 0, None, failed=True, note="it hung.")
    page = render(MACHINE, [*rounds(OURS, DQN_SPEED, *[2.0] * 5), failed])
    assert "| Stable-Baselines3 | none [1] |" in page
    assert "1. Stable-Baselines3, updates-dqn, CartPole-v1: it hung.\n" in page


def test_the_table_names_values_ratios_and_spread():
    page = render(
        MACHINE,
        [
            *rounds(OURS, DQN_SPEED, 1000.0, 3000.0, 2000.0, 2000.0, 2000.0),
            *rounds("sb3", DQN_SPEED, 500.0, 1000.0, 2000.0, 1000.0, 1000.0),
        ],
    )
    assert "| asyncrl | 2,000 (1,000 to 3,000) |" in page
    assert "| Stable-Baselines3 | 1,000, **2.00x** (1.00 to 3.00) |" in page
    assert "**a processor, 2 cores**, Python 3.11, torch 2" in page
    assert "Stable-Baselines3 1.2; commits abc1234, 2030-01-02; load before" in page
    assert "Not taken in 5 rounds at one commit: sampling of CartPole-v1, " in page


def test_times_to_a_score_stand_beside_the_work_that_they_took():
    small: dict[str, Any] = {"settings": {"hidden": [64, 64], "batch": 256, "cores": 2}}
    small["details"] = {"env_steps": 9000, "opt_steps": 700}
    large: dict[str, Any] = {"settings": {"policy_kwargs": {"net_arch": [256, 256]}}}
    large["settings"] |= {"batch_size": 64, "threads": 1}
    large["details"] = {"env_steps": 800, "opt_steps": 400}
    page = render(
        MACHINE,
        [
            *(taken(OURS, DQN_TIME, i, 4.0, **small) for i in range(5)),
            *(taken("sb3", DQN_TIME, i, 8.0, **large) for i in range(5)),
        ],
    )
    assert "| DQN to 475, CartPole-v1 | asyncrl | 9,000 | 700 | 64x64, 256 | 2 | 4.00" in page
    assert (
        "| Stable-Baselines3 | 800 | 400 | 256x256, 64 | 1 | 8.00 (8.00; n = 5) | **2.00** |"
        in page
    )


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


def test_the_identity_depends_on_the_side_and_on_how_long_it_is_measured():
    identities = {
        plan().identity(OURS, DQN_SPEED),
        plan().identity("sb3", DQN_SPEED),
        plan(sides=()).identity("torchrl", DQN_SPEED),
        replace(plan(), seconds=2.0).identity("sb3", DQN_SPEED),
    }
    assert len(identities) == 4


def test_a_side_that_fails_is_not_asked_forever():
    failed = [taken("sb3", DQN_SPEED, 0, None, failed=True)]
    assert settled(failed, DQN_SPEED, "sb3")
    assert not settled(failed, DQN_SPEED, "torchrl")
    assert not settled(rounds("sb3", DQN_SPEED, 3.0), DQN_SPEED, "sb3")


def test_swept_settings_are_of_a_stage_and_change_the_identity():
    sampling = Quantity(stage="sampling", env="CartPole-v1")
    swept = plan(swept={"sampling": {"sb3": {"CartPole-v1": {"envs": 8}}}})
    assert json.loads(swept.settings("sb3", sampling)) == {"envs": 8}
    assert swept.settings("sb3", replace(sampling, stage="env")) == "{}"
    assert swept.identity("sb3", sampling) != plan().identity("sb3", sampling)
    assert swept.identity(OURS, sampling) == plan().identity(OURS, sampling)


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


def test_measurements_survive_the_disk(tmp_path):
    path = tmp_path / "peers.json"
    assert load_measurements(path) == ({}, [])
    kept = rounds(OURS, DQN_TIME, 1.0, None)
    save_measurements(path, MACHINE, kept)
    assert load_measurements(path) == (MACHINE, kept)


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
