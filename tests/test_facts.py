"""Facts are read from records; the time before the first optimisation step can be taken out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.cores import Cores
from asyncrl.facts import Facts, Setup
from asyncrl.metrics import describe

RECORD = {
    "wall_s": 12.0,
    "opt_steps": 300.0,
    "samples_per_insert": 3.9,
    "share/learner_wait": 0.2,
    "share/learner_opt": 0.8,
    "share/actor_env": 0.7,
    "share/actor_wait": 0.3,
    "actor/0/restarts": 1.0,
    "actor/1/restarts": 2.0,
    "system/cpu_percent": 98.0,
    "system/machine_cpu_percent": 75.0,
}


def facts(wait: float = 0.5, wall_s: float = 10.0, start_up_s: float = 0.0) -> Facts:
    return Facts(
        setup=Setup(actors=2, cores=2),
        actor={"env": 1.0},
        learner={"wait": wait, "opt": 1 - wait},
        wall_s=wall_s,
        opt_steps=100.0,
        start_up_s=start_up_s,
    )


def test_record_holds_every_fact() -> None:
    setup = Setup(actors=2, envs_per_actor=8, samples_per_insert=4.0, cores=2)
    assert Facts.of_record(RECORD, setup) == Facts(
        setup=setup,
        actor={"env": 0.7, "wait": 0.3},
        learner={"wait": 0.2, "opt": 0.8},
        wall_s=12.0,
        opt_steps=300.0,
        samples_per_insert=3.9,
        restarts=3,
        cpu_percent=98.0,
        machine_cpu_percent=75.0,
    )


def test_facts_are_read_from_metrics_that_exist() -> None:
    assert [name for name in RECORD if describe(name) is None] == []


def test_what_a_record_lacks_is_not_known() -> None:
    read = Facts.of_record({}, Setup())
    assert (read.actors_wait, read.learner_waits) == (0.0, 0.0)
    assert (read.cpu_percent, read.machine_cpu_percent) == (None, None)


def test_waiting_before_the_first_opt_step_is_taken_out() -> None:
    learning = facts(wait=0.5, wall_s=10.0, start_up_s=3.0).without_start_up()
    assert learning.learner_waits == pytest.approx(2 / 7)
    assert learning.learner["opt"] == pytest.approx(5 / 7)


@given(
    wait=st.floats(0, 0.99),
    wall_s=st.floats(0.1, 1e4),
    part=st.floats(0, 1),
)
def test_shares_without_start_up_add_up_to_one(wait: float, wall_s: float, part: float) -> None:
    learner = facts(wait, wall_s, start_up_s=part * wall_s).without_start_up().learner
    assert sum(learner.values()) == pytest.approx(1.0)
    assert min(learner.values()) >= 0


def test_start_up_that_is_not_known_changes_nothing() -> None:
    before = facts(wait=0.5)
    assert before.without_start_up() == before


def test_cores_are_those_that_this_process_may_use() -> None:
    assert Setup().cores == Cores().count
