"""The pushers of the benchmark of ingest keep to their rate, whatever clock they look at."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bench_ingest import KINDS, Pace, Streaming


def test_pace_is_kept_by_naps_that_are_worth_it() -> None:
    pace, now, naps = Pace(1000.0), 50.0, []
    for _ in range(5000):
        naps.append(pace.nap_s(now))
        now += naps[-1] + 0.0001
    assert now - 50.0 == pytest.approx(5.0 - 0.1, abs=0.01), "it began 0.1 s late"
    assert min(nap for nap in naps if nap) > 0.002
    assert naps.count(0.0) > len(naps) / 2


def test_who_is_late_catches_up_with_a_tenth_of_a_second_only() -> None:
    pace = Pace(1000.0)
    pace.nap_s(0.0)
    assert pace.nap_s(10.0) == 0.0
    at_once = 0
    while pace.nap_s(10.0) == 0.0:
        at_once += 1
    assert at_once == pytest.approx(100, abs=3)


@pytest.mark.parametrize("kind", KINDS)
def test_streams_repeat_what_they_showed(kind: str) -> None:
    envs = Streaming(KINDS[kind])
    first = envs.reset(0)
    step = envs.step(np.zeros((envs.n_envs, 1), np.float32))
    assert first.shape == (KINDS[kind].envs, *KINDS[kind].shape)
    np.testing.assert_array_equal(step.obs, first)
    assert not step.terminated.any()
