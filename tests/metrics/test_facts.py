"""Facts are read from records."""

from __future__ import annotations

from asyncrl.metrics.metrics import describe
from asyncrl.metrics.verdict import Facts, Setup

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
    "system/children_cpu_percent": 50.0,
    "system/throttled_percent": 12.0,
    "lag/at_insert_mean": 3.0,
    "lag/versions_mean": 70.0,
}


def test_record_holds_every_fact() -> None:
    setup = Setup(actors=2, envs_per_actor=8, samples_per_insert=4.0, cores=2)
    assert [name for name in RECORD if describe(name) is None] == [], "they exist"
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
        children_cpu_percent=50.0,
        throttled_percent=12.0,
        lag_at_insert=3.0,
        lag_when_sampled=70.0,
    )
