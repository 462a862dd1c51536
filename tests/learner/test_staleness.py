"""Lag of batches in versions and seconds, and warnings of actors that lag too far behind."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from asyncrl.core.messages import Experience
from asyncrl.core.segment import END
from asyncrl.core.types import ModelVersion
from asyncrl.learner.staleness import Lag, Staleness
from tests.support.sample_messages import make_experience, make_peer


@pytest.mark.fault("F31")
def test_lag_is_weighted_by_how_often_a_version_occurs() -> None:
    now = [100.0]
    staleness = Staleness(clock=lambda: now[0])
    staleness.on_publish(ModelVersion(0))
    now[0] = 110.0
    staleness.on_publish(ModelVersion(20))
    now[0] = 112.0
    staleness.opt_steps = 30
    staleness.on_sampled({"model_version": np.array([0, *[20] * 31])})
    assert staleness.take() == {
        "lag/versions_mean": (30 + 31 * 10) / 32,
        "lag/versions_min": 10.0,
        "lag/versions_max": 30.0,
        "lag/seconds_mean": (12 + 3 * 2) / 4,
        "lag/seconds_max": 12.0,
        "lag/histogram/8": 31.0,
        "lag/histogram/16": 1.0,
    }
    assert staleness.take() == {}
    assert staleness.mean_when_sampled == (30 + 31 * 10) / 32


@pytest.mark.behaviour(number=30)
def test_histogram_counts_rows_of_the_whole_run_by_powers_of_two() -> None:
    staleness = Staleness()
    assert staleness.histogram == {}
    staleness.opt_steps = 9
    staleness.on_sampled({"model_version": np.array([[9, 9, 8], [7, 6, 5]])})
    staleness.take()
    staleness.opt_steps = 9
    staleness.on_sampled({"model_version": np.array([0, 9])})
    assert staleness.histogram == {"0": 3, "1": 1, "2": 2, "4": 1, "8": 1}


def stored(staleness: Staleness, versions: list[list[int]], rows: list[int], at: int) -> None:
    flags = np.zeros((len(rows), len(versions[0])), np.uint8)
    flags[0, -1] = END
    columns = {"model_version": np.array(versions), "flags": flags}
    message = make_experience(1)
    staleness.opt_steps = at
    staleness.on_stored(replace(message, columns=columns, rows=np.array(rows)))


@pytest.mark.fault("F31")
def test_age_at_storing_is_of_the_transitions_stored_since_the_last_record() -> None:
    staleness = Staleness()
    assert staleness.take() == {}
    assert staleness.mean_at_insert is None
    stored(staleness, [[4, 6, 0], [2, 8, 0]], [3, 2], at=10)  # an `END` row, and one not filled
    stored(staleness, [[7, 7, 0]], [3], at=13)
    assert staleness.take() == {
        "lag/at_insert_mean": (6 + 4 + 8 + 2 + 6 + 6) / 6,
        "lag/at_insert_max": 8.0,
    }
    assert staleness.take() == {}
    stored(staleness, [[7, 0]], [2], at=13)
    assert staleness.mean_at_insert == (6 + 4 + 8 + 2 + 6 + 6 + 6) / 7, "of the whole run"


def test_experience_without_versions_of_its_rows_is_of_its_newest_model() -> None:
    staleness = Staleness()
    message = make_experience(1)
    columns = {k: v for k, v in message.columns.items() if k != "model_version"}
    staleness.opt_steps = 10
    staleness.on_stored(replace(message, columns=columns, model_version=ModelVersion(3)))
    assert staleness.take()["lag/at_insert_mean"] == 7.0


def test_number_of_remembered_publications_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.learner.staleness._KEPT", 4)
    now = [0.0]
    staleness = Staleness(clock=lambda: now[0])
    for number in range(5):
        now[0] = float(number)
        staleness.on_publish(ModelVersion(10 * number))
    ages = []
    for version in (0, 10, 20, 30, 40):
        staleness.opt_steps = 40
        staleness.on_sampled({"model_version": np.array([version])})
        ages.append(staleness.take()["lag/seconds_max"])
    assert ages == [2.0, 2.0, 2.0, 1.0, 0.0]


# --- limits --------------------------------------------------------------------------------------


def message(version: int, actor_id: int = 5) -> Experience:
    return replace(make_experience(1, make_peer(actor_id)), model_version=ModelVersion(version))


@pytest.mark.fault("F31")
def test_experience_of_a_model_long_replaced_is_warned_of_as_it_arrives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [100.0]
    staleness = Staleness(Lag(3.0, 0), clock=lambda: now[0])
    staleness.on_publish(ModelVersion(0))
    now[0] = 200.0
    staleness.on_experience(message(0))
    assert not caplog.records, "old, but there is no newer one"
    staleness.on_publish(ModelVersion(50))
    now[0] = 202.0
    staleness.on_publish(ModelVersion(100))
    assert not staleness.on_experience(message(0))
    assert not caplog.records, "2 s"
    now[0] = 203.5
    staleness.on_experience(message(100))
    staleness.on_experience(message(50))
    assert not caplog.records, "another one has been there for 1.5 s"
    assert staleness.on_experience(message(0))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "actor 5 comes from a model that is 3.5 s and 100 opt steps behind" in record.message


@pytest.mark.behaviour(number=30)
@pytest.mark.fault("F31")
def test_each_actor_is_warned_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    staleness = Staleness(Lag(0.0, 10), clock=lambda: now[0])
    for version in (0, 50):
        staleness.on_publish(ModelVersion(version))
    for now[0] in (1.0, 30.0, 60.5):
        staleness.on_experience(message(0))
        staleness.on_experience(message(0, actor_id=6))
    assert [("actor 5" in r.message) for r in caplog.records] == [True, False]
    now[0] = 61.0
    staleness.on_experience(message(0))
    assert len(caplog.records) == 3
