"""Reports of many incarnations become one row per slot."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.core.messages import ActorReport
from asyncrl.core.types import ActorId
from asyncrl.fleet.actor_table import ActorTable
from tests.support.sample_messages import make_peer


def report(actor_id: int, incarnation: int = 0, **values: object) -> ActorReport:
    base: dict[str, object] = {
        "produced": 0,
        "env_steps": 0,
        "episodes": 0,
        "shares": {"env": 1.0, "wait": 1.0},
    }
    return ActorReport(peer=make_peer(actor_id, incarnation), **(base | values))  # type: ignore[arg-type]


@pytest.mark.behaviour(number=56)
def test_rows_add_up_over_reports_and_incarnations() -> None:
    table = ActorTable()
    table.on_report(report(1, env_steps=100, episodes=2))
    table.on_report(report(1, env_steps=300, episodes=5))
    table.on_restart(ActorId(1))
    table.on_restart(ActorId(1), at_memory_limit=True)
    table.on_report(report(1, 1, env_steps=50, episodes=1, policy={"exploration_rate": 0.5}))
    row = table.rows()[ActorId(1)]
    assert (row.env_steps, row.episodes) == (350, 6)
    assert (row.restarts, row.memory_restarts) == (1, 1)
    record = table.take()
    assert record["actor/1/env_steps"] == 350
    assert record["actor/1/memory_restarts"] == 1
    assert record["actor/1/env_steps_per_s"] == 25
    assert record["actor/1/exploration_rate"] == 0.5
    assert record["episodes"] == 6


def test_totals_are_of_the_time_of_learning_and_hold_the_policys_last_numbers() -> None:
    table = ActorTable()
    shares = {"env": 3.0, "wait": 1.0}
    table.on_report(report(0, env_steps=400, shares=shares, policy={"exploration_rate": 0.5}))
    table.end_learning()
    ending = {"env_steps": 400, "shares": {"wait": 60.0}, "policy": {"exploration_rate": 0.2}}
    table.on_report(report(0, episodes=3, **ending))
    totals = table.rows()[ActorId(0)].totals()
    assert (totals["env_steps_per_s"], totals["wait_share"]) == (100.0, 0.25)
    assert (totals["exploration_rate"], totals["episodes"]) == (0.2, 3)


@pytest.mark.fault("F4")
def test_actor_that_was_dropped_is_distinguished() -> None:
    table = ActorTable()
    table.on_report(report(0, env_steps=100))
    table.on_report(report(1, env_steps=100))
    table.on_drop(ActorId(1))
    record = table.take()
    assert "actor/0/dropped" not in record
    assert record["actor/1/dropped"] == 1
    assert [row.totals()["dropped"] for row in table.rows().values()] == [0, 1]


@pytest.mark.behaviour(number=57)
def test_episodes_are_taken_once_counts_stay() -> None:
    table = ActorTable()
    of_two = {"episode_returns": np.array([1.0, 3.0]), "episode_lengths": np.array([10, 20])}
    table.on_report(report(0, episodes=2, **of_two))
    first, second = table.take(), table.take()
    assert (first["episode/return_mean"], first["episode/return_max"]) == (2.0, 3.0)
    assert (first["episode/return_min"], first["episode/return_std"]) == (1.0, 1.0)
    assert first["episode/length_mean"] == 15.0
    assert "episode/return_mean" not in second
    assert second["episodes"] == 2


def test_numbers_of_infos_are_means_over_the_episodes_of_all_actors() -> None:
    table = ActorTable()
    for actor, (total, count) in enumerate([(1.0, 2.0), (2.0, 2.0)]):
        sums, counts = {"success": total, "distance": 9.0}, {"success": count, "distance": 1.0}
        table.on_report(report(actor, info_sums=sums, info_counts=counts))
    first, second = table.take(), table.take()
    assert (first["episode/success_rate"], first["info/distance"]) == (0.75, 9.0)
    assert not {"episode/success_rate", "info/distance"} & second.keys()


@pytest.mark.behaviour(number=23)
def test_episodes_kept_between_records_are_bounded() -> None:
    table = ActorTable()
    many = report(0, episode_returns=np.full(1000, -1.0), episode_lengths=np.ones(1000, int))
    for _ in range(200):
        table.on_report(many)
    lengths = np.full(50_000, 3)
    table.on_report(report(0, episode_returns=np.ones(50_000), episode_lengths=lengths))
    record = table.take()
    assert (record["episode/return_mean"], record["episode/length_mean"]) == (0.0, 2.0)
