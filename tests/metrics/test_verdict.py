"""Each kind of run gets its own verdict, with its own numbers in it."""

from __future__ import annotations

import re
import typing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.metrics.verdict import Facts, Kind, Setup, judge

BUSY_ACTOR = {"env": 0.7, "policy": 0.2, "send": 0.1}
BUSY_LEARNER = {"opt": 0.8, "sample": 0.1, "publish": 0.05, "other": 0.05}


def waiting(busy: dict[str, float], wait: float) -> dict[str, float]:
    """Let one side wait; the rest of its time keeps its proportions."""
    return {name: share * (1 - wait) for name, share in busy.items()} | {"wait": wait}


def facts(
    actors_wait: float = 0.0,
    learner_waits: float = 0.0,
    *,
    actor: dict[str, float] | None = None,
    learner: dict[str, float] | None = None,
    setup: dict[str, Any] | None = None,
    **more: Any,
) -> Facts:
    defaults: dict[str, Any] = {"actors": 4, "envs_per_actor": 8, "samples_per_insert": 4.0}
    defaults |= {"cores": 8, "quota": None}
    return Facts(
        setup=Setup(**(defaults | (setup or {}))),
        actor=waiting(actor or BUSY_ACTOR, actors_wait),
        learner=waiting(learner or BUSY_LEARNER, learner_waits),
        **({"wall_s": 60.0, "opt_steps": 1000.0} | more),
    )


# Facts, kind, and words that the sentence must have: its evidence, its advice.
CASES: dict[str, tuple[Facts, Kind, tuple[str, ...]]] = {
    "nothing learned yet": (facts(opt_steps=0.0), "too-early", ("no optimisation step",)),
    "no reports yet": (replace(facts(), actor={}), "too-early", ("no actor has reported",)),
    "resumed at its end": (
        replace(facts(wall_s=0.0), actor={}, learner={}),
        "unmeasured",
        ("nothing was left to train",),
    ),
    "stopped at once": (
        facts(wall_s=0.6, start_up_s=2.9),
        "too-early",
        ("learned for 0.6 s after 2.9 s",),
    ),
    "synchronous": (
        facts(setup={"actors": 0}, learner={"act": 0.6, "opt": 0.3, "sample": 0.1}),
        "alone",
        ("acting takes 60 %", "optimising 30 %", "1.7 times"),
    ),
    "restarts": (facts(0.6, restarts=5), "restarts", ("restarted 5 times", "once in 12 s")),
    "quota is used up": (
        facts(setup={"cores": 1, "quota": 0.5}, throttled_percent=94.0),
        "throttled",
        ("quota of 0.5 cores is used up in 94 % of its periods", "raise the quota"),
    ),
    "others take the cores": (
        facts(
            learner_waits=0.6,
            setup={"actors": 2, "cores": 2},
            machine_cpu_percent=100.0,
            cpu_percent=20.0,
            children_cpu_percent=45.0,
        ),
        "contended",
        ("the 2 cores (100 % busy)", "gets 0.7 of the 2.0 that", "fewer trainings"),
    ),
    "inline evaluation": (
        facts(0.5, learner={"eval": 0.5, "opt": 0.5}),
        "overhead-bound",
        ("evaluating takes 50 %", "evaluate.interval_opt_steps, to 19 times"),
    ),
    "long evaluations": (
        facts(setup={"cores": 2}, machine_cpu_percent=99.0, evaluation=0.3),
        "overhead-bound",
        ("evaluations have taken 30 %", "evaluate.play.episodes"),
    ),
    "many records": (
        facts(learner={"record": 0.2, "save": 0.1, "opt": 0.7}),
        "overhead-bound",
        ("making records takes 20 %", "record.interval_s", "to 5 times"),
    ),
    "actors on other machines": (
        facts(0.0, 0.5, setup={"cores": 2, "elsewhere": True}, machine_cpu_percent=99.0),
        "env-bound",
        ("8 actors, on hosts that join, would keep",),
    ),
    "actors on other machines, as many as may be": (
        facts(0.0, 0.5, setup={"elsewhere": True, "most_actors": 4}),
        "env-bound",
        ("the run admits 4 actors, on hosts that join; resume it with a higher `actors`",),
    ),
    "each actor has its agent, cores are busy": (
        facts(0.0, 0.5, setup={"cores": 4, "most_actors": 4}, machine_cpu_percent=90.0),
        "env-bound",
        ("so use faster environments",),
    ),
    "more actors than cores": (
        facts(0.4, setup={"cores": 2}, machine_cpu_percent=99.0),
        "overcommitted",
        ("4 actors and the learner share the 2 cores (99 % busy)", "1 actor would"),
    ),
    "both wait": (
        facts(0.4, 0.3),
        "limiter-bound",
        ("actors 40 %", "learner 30 %", "segment.length", "limiter.band_transitions"),
    ),
    "learner cannot keep up": (
        facts(0.62, 0.02),
        "learner-bound",
        ("actors wait 62 %", "optimises 78 %", "2 actors would do", "from 4 to 1.5"),
    ),
    "learner has all cores": (
        facts(
            0.98,
            setup={"actors": 4, "cores": 2, "if_cheap": "ppo-mujoco"},
            machine_cpu_percent=98.0,
            cpu_percent=190.0,
            children_cpu_percent=6.0,
        ),
        "learner-bound",
        ("while the learner, with all 2 cores, optimises", "1 actor would do", "ppo-mujoco"),
    ),
    "learner lacks a core": (
        facts(0.4, setup={"actors": 2, "cores": 2}, machine_cpu_percent=98.0, cpu_percent=63.0),
        "learner-bound",
        ("1 actor would leave it more than 63 % of a core, or lower",),
    ),
    "actors wait, limiter off": (
        facts(0.5, setup={"samples_per_insert": 0.0}),
        "receiver-bound",
        ("actors wait 50 %", "segment.length"),
    ),
    "small batches for the policy": (
        facts(learner_waits=0.5, actor={"policy": 0.6, "env": 0.3, "send": 0.1}),
        "policy-bound",
        ("learner waits 50 %", "choose actions 60 %", "64 environments instead of 8"),
    ),
    "short segments": (
        facts(learner_waits=0.5, actor={"send": 0.5, "env": 0.4, "policy": 0.1}),
        "send-bound",
        ("pack and send 50 %", "segment.length"),
    ),
    "environments, idle cores": (
        facts(learner_waits=0.4, machine_cpu_percent=50.0),
        "env-bound",
        ("learner waits 40 %", "step environments 70 %", "7 actors would use the idle"),
    ),
    "environments asleep, idle cores": (
        facts(
            learner_waits=0.95,
            actor={"env": 0.05, "sleep": 0.85, "policy": 0.1},
            setup={"actors": 2, "cores": 2},
            machine_cpu_percent=40.0,
            children_cpu_percent=20.0,
        ),
        "env-bound",
        ("step environments 90 % of theirs, 85 % asleep", "10 actors would use the idle"),
    ),
    "environments, no idle core": (
        facts(learner_waits=0.6, setup={"actors": 2, "cores": 2}, machine_cpu_percent=97.0),
        "env-bound",
        ("the 2 cores (97 % busy)", "native vectorization", "from 4 to 10"),
    ),
    "actors, no phase stands out": (
        facts(learner_waits=0.3, actor={"env": 0.4, "policy": 0.35, "send": 0.25}),
        "actor-bound",
        ("busy 100 % of theirs (environments 40 %, actions 35 %, sending 25 %)", "6 actors"),
    ),
    "neither waits, cores full": (
        facts(0.1, 0.05, setup={"actors": 2, "cores": 2}, machine_cpu_percent=99.0),
        "cores-bound",
        ("2 actors and the learner share the 2 cores (99 % busy)", "actors 10 %", "learner 5 %"),
    ),
    "limiter off": (
        facts(setup={"samples_per_insert": 0.0}, samples_per_insert=23.4),
        "unlimited",
        ("not limited", "23 times"),
    ),
    "old when stored": (
        facts(0.62, 0.02, lag_at_insert=40.0, lag_when_sampled=90.0),
        "learner-bound",
        ("actors wait 62 %", "40 opt steps old when it is stored", "segment.length"),
    ),
    "neither waits": (facts(0.1, 0.12), "balanced", ("actors wait 10 %", "learner 12 %")),
}


@pytest.mark.parametrize(("measured", "kind", "words"), CASES.values(), ids=CASES)
def test_verdict_names_its_evidence_and_what_to_do(
    measured: Facts, kind: Kind, words: tuple[str, ...]
) -> None:
    verdict = judge(measured)
    assert verdict.kind == kind
    assert [word for word in words if word not in verdict.sentence] == []


@pytest.mark.parametrize(("stored", "sampled"), [(5.0, 8.0), (None, None)])
def test_little_lag_is_not_named(stored: float | None, sampled: float | None) -> None:
    verdict = judge(facts(0.62, 0.02, lag_at_insert=stored, lag_when_sampled=sampled))
    assert verdict == judge(facts(0.62, 0.02))


def test_every_kind_has_a_case() -> None:
    assert {kind for _, kind, _ in CASES.values()} == set(typing.get_args(Kind))


@given(
    shares=st.lists(st.floats(0.001, 1), min_size=12, max_size=12),
    actors=st.integers(0, 64),
    more=st.integers(0, 4),
    load=st.none() | st.floats(0, 100),
    restarts=st.integers(0, 9),
    hosts=st.none() | st.integers(0, 64),
    setup=st.fixed_dictionaries(
        {
            "cores": st.integers(1, 64),
            "envs_per_actor": st.none() | st.integers(1, 512),
            "samples_per_insert": st.none() | st.sampled_from([0.0, 0.5, 32.0]),
            "quota": st.none() | st.floats(0.01, 64),
            "elsewhere": st.booleans(),
        }
    ),
)
def test_any_run_gets_one_sentence(
    *,
    shares: list[float],
    actors: int,
    more: int,
    load: float | None,
    restarts: int,
    hosts: int | None,
    setup: dict[str, Any],
) -> None:
    def of(phases: str, parts: list[float]) -> dict[str, float]:
        return {n: part / sum(parts) for n, part in zip(phases.split(), parts, strict=True)}

    most = max(1, actors + more)
    verdict = judge(
        Facts(
            setup=Setup(actors=actors, most_actors=most, **setup),
            actor=of("env policy send wait", shares[:4]),
            learner=of("wait sample opt publish record eval save other", shares[4:]),
            wall_s=30.0,
            opt_steps=10.0,
            restarts=restarts,
            cpu_percent=load,
            machine_cpu_percent=load,
            children_cpu_percent=load,
            throttled_percent=None if setup["quota"] is None else load,
            host_actors=hosts if setup["elsewhere"] and hosts in range(actors + 1) else None,
        )
    )
    advised = re.findall(r"(\d+) actors?[^;]* would (?:use|keep|help)", verdict.sentence)
    assert all(1 <= int(number) <= most for number in advised)
    assert verdict.kind in typing.get_args(Kind)
    assert "\n" not in verdict.sentence
    assert not re.search(r"nan|inf |None|-\d|  | ,|  ", verdict.sentence)
    assert max(map(int, re.findall(r"(\d+) %", verdict.sentence)), default=0) <= 100
