"""Lag of a batch in versions and seconds."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.staleness import Staleness


@pytest.mark.fault("F31")
def test_lag_is_weighted_by_how_often_a_version_occurs() -> None:
    now = [100.0]
    staleness = Staleness(clock=lambda: now[0])
    staleness.on_publish(0)
    now[0] = 110.0
    staleness.on_publish(20)
    now[0] = 112.0
    record = staleness.of({"model_version": np.array([0, 20, 20, 20])}, opt_steps=30)
    assert record == {
        "lag/versions_mean": (30 + 3 * 10) / 4,
        "lag/versions_max": 30.0,
        "lag/seconds_mean": (12 + 3 * 2) / 4,
        "lag/seconds_max": 12.0,
    }


def test_batch_without_versions_has_no_lag() -> None:
    assert Staleness().of({}, opt_steps=3) == {}
