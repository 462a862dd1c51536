"""Environments that count, and obey orders."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.chaos import worlds
from benchmarks.chaos.worlds import SCALE, Incarnations, Numbered, Order

ACTION = np.zeros(2, np.int64)


@pytest.fixture
def world(tmp_path: Path) -> Numbered:
    return Numbered(Incarnations(tmp_path / "lives").path, n_envs=2, pace_s=0.0, width=4)


def test_observations_say_which_incarnation_and_step_they_are_of(world: Numbered) -> None:
    first, second = world(), world()
    assert (first.life.number, second.life.number) == (1, 2)
    obs = second.reset(0)
    assert np.array_equal(obs[:, :3] / SCALE, [[2, 0, 0], [2, 1, 0]])
    for _ in range(3):
        outcome = second.step(ACTION)
    assert np.array_equal(outcome.obs[:, 2] / SCALE, [3, 3])
    assert outcome.obs.shape == (2, 7) == (2, *second.spec.observation.shape)
    second.close()
    assert (first.life.steps, second.life.steps) == (0, 3)


def test_everybody_who_opens_the_file_sees_the_same(
    world: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = world()
    env.step(ACTION)
    lives = Incarnations(world.lives)
    assert lives.all() == [], "the process that looks on is no actor"
    monkeypatch.setattr(worlds.os, "getpid", lambda: 0)
    (seen,) = lives.all()
    assert (seen.number, seen.steps, seen.pid) == (1, 1, env.life.pid)
    assert [life.number for life in lives.living()] == [1]
    env.life._cells[0] = 2**22 + 1  # a number that no process has
    assert lives.living() == []
    assert not seen.lives


def test_an_order_is_obeyed_once(world: Numbered) -> None:
    env = world()
    env.life.order = Order.RAISE
    with pytest.raises(ValueError, match="the wheel came off"):
        env.step(ACTION)
    assert env.life.obeyed_at > 0
    assert env.life.order == Order.NONE
    env.step(ACTION)
    assert env.life.steps == 1
    assert env.life.pid == os.getpid()
