"""Environments that count, and obey orders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.chaos.worlds import SCALE, Incarnations, Numbered

ACTION = np.zeros(2, np.int64)


@pytest.fixture
def world(tmp_path: Path) -> Numbered:
    return Numbered(Incarnations(tmp_path / "incarnations").path, n_envs=2, pace_s=0.0, width=4)


def test_observations_say_which_incarnation_and_step_they_are_of(world: Numbered) -> None:
    first, second = world(), world()
    assert (first.incarnation.number, second.incarnation.number) == (1, 2)
    obs = second.reset(0)
    assert np.array_equal(obs[:, :3] / SCALE, [[2, 0, 0], [2, 1, 0]])
    for _ in range(3):
        outcome = second.step(ACTION)
    assert np.array_equal(outcome.obs[:, 2] / SCALE, [3, 3])
    assert outcome.obs.shape == (2, 7) == (2, *second.spec.observation.shape)
    second.close()
    assert (first.incarnation.steps, second.incarnation.steps) == (0, 3)
