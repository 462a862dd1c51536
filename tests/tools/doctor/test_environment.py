"""Each thing that may be wrong with an environment is found, in one that has nothing else wrong."""

from __future__ import annotations

import itertools
import math
import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import AutoresetMode

from asyncrl.core.env import BatchEnv, BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.errors import AsyncRLError, ConfigError
from asyncrl.envs.gym import EnvConfig
from asyncrl.tools.doctor import environment
from asyncrl.tools.doctor import findings as judge
from asyncrl.tools.doctor import probe as probe_module
from asyncrl.tools.doctor.environment import diagnose
from asyncrl.tools.doctor.findings import Finding, action_bounds, reward_scale, speed, time_limit
from asyncrl.tools.doctor.probe import Episode, Experience, Probe, misfit, play
from tests.envs import broken_envs
from tests.envs.broken_envs import make, stale_final_obs

PLAIN = "tests.envs.broken_envs:make"
VECTOR = "tests.envs.broken_envs:make_vector"


@pytest.fixture(autouse=True)
def _steps_are_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show 2 ms more at each look, so that a busy machine plays as many steps as any other."""
    looks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: 0.002 * next(looks))
    for module in (environment, judge, probe_module):
        monkeypatch.setattr(module, "time", clock)


def examined(env_id: str = PLAIN, **kwargs: Any) -> list[Finding]:
    native = env_id == VECTOR
    config = EnvConfig(
        id=env_id, kwargs=kwargs, n_envs=3, vectorization="native" if native else "batch"
    )
    return [*diagnose(config, seconds=0.6)]


def wrong(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(f.level, f.check) for f in findings if f.level != "ok"]


def only(findings: list[Finding], check: str) -> Finding:
    (found,) = [f for f in findings if f.check == check]
    return found


@pytest.mark.parametrize("mode", AutoresetMode)
def test_nothing_is_wrong_with_a_good_vector_environment(mode: AutoresetMode) -> None:
    findings = examined(VECTOR, really=mode.value)
    assert wrong(findings) == []
    assert only(findings, "autoreset").seen == f"{mode.name}, confirmed at 3 ends"
    assert mode.name in only(findings, "make").seen


def test_nothing_is_wrong_with_a_good_plain_environment() -> None:
    findings = examined()
    assert wrong(findings) == []
    names = "make factory spaces actions reproducible seeds observations finite rewards episodes"
    names += " time limit arrays reward scale speed preset close"
    assert " ".join(f.check for f in findings) == names
    numbers = only(findings, "speed").numbers
    assert numbers["env_steps_per_s"] > 0
    assert numbers["step_p99_s"] >= numbers["step_median_s"] > 0
    assert only(findings, "reward scale").numbers == {
        "reward_mean": 1.0,
        "reward_std": 0.0,
        "reward_abs_max": 1.0,
    }


@pytest.mark.parametrize(
    ("number", "text"), [(1.7e9 + 1, "1700000001.0.* becomes 1700000000.0"), (1.7e9, ""), (0.1, "")]
)
def test_numbers_that_float32_rounds_by_whole_units_are_shown(number: float, text: str) -> None:
    probe = Probe(make(obs=np.array([number, 0.0])))
    probe.observation_space = Box(-np.inf, np.inf, (2,), np.float64)
    findings = [*judge.observations(play(probe, seconds=20.0, max_steps=20))]
    assert [f.level for f in findings] == ["warn" if text else "ok"]
    assert re.search(text, findings[0].seen)


@pytest.mark.parametrize(
    ("flaws", "expected", "seen"),
    [
        ({"obs": np.zeros(3, np.float32)}, ("fail", "observations"), r"\(3,\) .* says \(2,\)"),
        ({"obs": np.zeros(2)}, ("warn", "observations"), "float64 where the space says float32"),
        ({"obs": np.full(2, 9.5, np.float32)}, ("warn", "observations"), r"9.5 at \(0,\) .*-9"),
        ({"obs": np.full(2, np.nan, np.float32)}, ("fail", "finite"), "nan.* after"),
        ({"reward": math.inf}, ("fail", "rewards"), "inf, a float"),
        ({"reward": np.ones(1)}, ("fail", "rewards"), "1.0.*ndarray"),
        ({"reward": None}, ("fail", "rewards"), "None"),
        ({"flags": lambda end: (int(end), False)}, ("warn", "flags"), "a int"),
        ({"flags": lambda end: (end, end)}, ("fail", "episodes"), "both flags every time"),
        (
            {"flags": lambda _: (False, False)},
            ("warn", "episodes"),
            "no episode ended; the longest",
        ),
    ],
)
def test_what_play_shows(flaws: dict[str, Any], expected: tuple[str, str], seen: str) -> None:
    facts = play(Probe(make(**flaws)), seconds=20.0, max_steps=60)
    findings = [
        *judge.observations(facts),
        judge.finite(facts),
        judge.rewards(facts),
        *judge.endings(facts),
    ]
    assert wrong(findings) == [expected]
    (found,) = [f for f in findings if f.level != "ok"]
    assert re.search(seen, found.seen), found.seen
    assert found.advice


def test_fields_of_an_observation_are_named() -> None:
    space = Dict({"speed": Box(0, 1, (2,)), "gear": Discrete(5)})
    good = {"speed": np.zeros(2, np.float32), "gear": 4}
    assert misfit(space, good) is None
    bad = misfit(space, {**good, "speed": np.full(2, 2.0, np.float32)})
    assert bad is not None
    assert (bad.kind, bad.seen[:15]) == ("bounds", "field 'speed': ")
    for row in ({"speed": good["speed"]}, {**good, "gear": 5}, 3):
        found = misfit(space, row)
        assert found is not None
        assert found.kind == "structure"


@pytest.mark.parametrize(
    ("flaws", "check", "seen"),
    [
        ({"own_random": True}, "reproducible", "differ in the first observation"),
        ({"no_random": True}, "seeds", "different seeds with the same actions give the same"),
        ({"reward": 1e4}, "reward scale", "largest 1e"),
        ({"time_limit": None, "no_random": True}, "time limit", "were terminated after 13 steps"),
    ],
)
def test_warnings(flaws: dict[str, Any], check: str, seen: str) -> None:
    findings = examined(**flaws)
    found = only(findings, check)
    assert found.level == "warn"
    assert found.advice
    assert seen in found.seen
    assert not any(f.level == "fail" for f in findings)


def test_time_limit_reported_as_termination_is_suspected() -> None:
    ends = [Episode(9, terminated=True, truncated=False)] * 3
    early = [Episode(4, terminated=True, truncated=False)] * 3
    cut = [Episode(9, terminated=False, truncated=True)]
    assert time_limit(Experience(episodes=ends, longest=9)).level == "warn"
    assert time_limit(Experience(episodes=ends + early, longest=9)).level == "warn"
    assert time_limit(Experience(episodes=ends + early * 2, longest=9)).level == "ok"
    assert time_limit(Experience(episodes=ends, longest=12)).level == "ok"
    assert time_limit(Experience(episodes=ends + cut, longest=9)).level == "ok"
    assert time_limit(Experience()).level == "ok"


def test_time_limit_that_does_not_hold_is_a_failure() -> None:
    assert time_limit(Experience(longest=12, time_limit=10)).level == "fail"
    within = Experience(longest=7, time_limit=1000)
    assert [f.level for f in judge.endings(within)] == ["ok"], "no limit is missing"
    assert time_limit(Experience(longest=10, time_limit=10)).level == "ok"
    known = EnvConfig(id="tests.envs.broken_envs:make_limited", n_envs=2)
    (found,) = [f for f in diagnose(known, seconds=0.3) if f.check == "make"]
    assert found.level == "ok"


@pytest.mark.parametrize(
    ("action", "level", "seen"),
    [
        (DiscreteSpec(3), "ok", "one of 3"),
        (BoxSpec((2,), "float32", np.full(2, -1), np.full(2, 1)), "ok", "within [-1, 1]"),
        (BoxSpec((2,), "float32", np.full(2, -1), np.full(2, np.inf)), "fail", "within [-1, inf]"),
        (BoxSpec((2,), "float32", np.array([0, 1]), np.array([1, 1])), "warn", "1 of them"),
        (BoxSpec((2,), "int64", np.zeros(2), np.ones(2)), "fail", "int64"),
        (BoxSpec((2,), "float32", np.array([0, -1]), np.array([1, 1])), "ok", "different bounds"),
    ],
)
def test_action_bounds(action: Any, level: str, seen: str) -> None:
    observation = BoxSpec((1,), "float32", np.zeros(1), np.ones(1))
    found = action_bounds(EnvSpec(observation, action))
    assert found.level == level
    assert seen in found.seen
    assert bool(found.advice) == (level != "ok")


def test_steps_that_stall_the_others_are_a_warning() -> None:
    smooth = [0.001] * 200
    assert speed(smooth, 0.1, 4, 800).level == "ok"
    assert "about 4,000 env steps/s" in speed(smooth, 0.1, 4, 800).seen
    assert speed([*smooth, 0.2, 0.2, 0.2], 0.1, 4, 812).level == "warn"


@pytest.mark.parametrize(
    ("really", "says", "seen"),
    [
        ("SameStep", "NextStep", "as in SAME_STEP"),
        ("SameStep", "Disabled", "as in SAME_STEP"),
        ("NextStep", "SameStep", 'without infos["final_obs"]'),
        ("Disabled", "NextStep", "the step after an episode's end raises AssertionError"),
    ],
)
def test_wrong_autoreset_mode_is_found_by_playing(really: str, says: str, seen: str) -> None:
    found = only(examined(VECTOR, really=really, says=says), "autoreset")
    assert found.level == "fail"
    assert f"says {AutoresetMode(says).name}" in found.seen
    assert seen in found.seen


def test_reset_that_is_not_ignored_is_found_without_any_other_sign() -> None:
    native = "tests.envs.broken_envs:make_silent"
    found = only(examined(native), "autoreset")
    assert found.level == "fail"
    assert "depends on its action" in found.seen or "a reward" in found.seen


def test_last_observation_in_place_of_the_first_is_found() -> None:
    findings = examined("tests.envs.broken_envs:stale_final_obs")
    assert "not the first of the next episode" in only(findings, "autoreset").seen
    assert stale_final_obs().metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_unsupported_spaces_end_the_examination() -> None:
    findings = examined(action_space=Tuple((Discrete(2), Discrete(2))))
    assert wrong(findings) == [("fail", "make")]
    assert "Tuple(Discrete(2), Discrete(2))" in findings[0].seen
    assert [f.check for f in findings] == ["make", "close"]


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("class", "Patient'>"),
        ("no spaces", "observation_space None"),
        ("old reset", "unexpected keyword argument 'seed'"),
        ("reset without info", "2: observation, info"),
        ("4 values", "step of UnlikeApi returned 4 values"),
        ("None", "step of UnlikeApi returned a single value, None"),
        ("flag of text", "UnlikeApi returned `terminated` of shape"),
        ("flags", "UnlikeApi returned `terminated` of shape"),
    ],
)
def test_answers_unlike_the_api_are_refused_as_in_training(how: str, named: str) -> None:
    config = EnvConfig(id="tests.envs.broken_envs:make_unlike_api", kwargs={"how": how})
    (found,) = [f for f in diagnose(config, seconds=0.2) if f.level == "fail"]
    assert named in found.seen
    with pytest.raises(AsyncRLError) as caught:
        play_batch(config.build())
    words = re.sub(r"environment 0 of 1 \((\w+)\)", r"\1", str(caught.value))
    assert words.replace("('won',)", "['won']") == found.seen


def play_batch(batch: BatchEnv) -> None:
    batch.reset(0)
    for _ in range(20):
        batch.step(np.zeros(1, np.int64))


def test_factory_that_cannot_be_sent_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only([*diagnose(EnvConfig(id=PLAIN), seconds=0.1)], "factory").level == "ok"
    monkeypatch.setattr(environment, "pickled", Mock(side_effect=ConfigError("a lock")))
    assert wrong([*diagnose(EnvConfig(id=PLAIN), seconds=0.1)]) == [("fail", "make")]


@pytest.mark.processes
def test_process_left_behind_is_a_warning() -> None:
    try:
        findings = examined(do="start a process")
    finally:
        for process in broken_envs.started_processes():
            process.communicate(b"\n")
    assert wrong(findings) == [("warn", "close")]
    assert "1 processes still run" in only(findings, "close").seen


def test_forbidden_actions_are_not_played() -> None:
    config = EnvConfig(
        id="tests.envs.test_masks:Strict", n_envs=2, wrappers=("asyncrl.envs.masks:ActionMasks",)
    )
    findings = [*diagnose(config, seconds=0.4)]
    assert not [f for f in findings if f.level == "fail"]
    assert only(findings, "actions").seen == "one of 3, as masks allow"
    assert not [f for f in findings if f.check == "action mask"]


def test_unused_mask_is_found() -> None:
    probe = Probe(EnvConfig(id="Taxi-v4").make())
    (found,) = judge.unused_mask(play(probe, seconds=60.0, max_steps=3))
    assert "--env-wrappers asyncrl.envs.masks:ActionMasks" in found.advice
    wrapped = EnvConfig(id="Taxi-v4", wrappers=("asyncrl.envs.masks:ActionMasks",)).make()
    assert not [*judge.unused_mask(play(Probe(wrapped), seconds=60.0, max_steps=3))]


def test_rewards_that_are_all_0_are_a_warning() -> None:
    assert reward_scale([0.0] * 30).level == "warn"
    assert "all of 30 were 0" in reward_scale([0.0] * 30).seen
    assert reward_scale([0.0, 1.0]).level == "ok"
    assert reward_scale([0.0, -101.0]).level == "warn"
