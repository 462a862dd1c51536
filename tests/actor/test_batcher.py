"""Which requests are computed together, and when: by rows, by time, and without the dead."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.actor.batcher import Batcher
from asyncrl.core.errors import ConfigError
from asyncrl.core.inference import InferenceRequest, ServingConfig
from tests.support.sample_messages import make_peer


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def request(
    actor_id: int, rows: int = 1, number: int = 1, incarnation: int = 0, noise: bool = False
) -> InferenceRequest:
    inputs = {"obs": np.zeros((rows, 2), np.float32)}
    if noise:
        inputs["noise"] = np.zeros((rows, 3), np.float32)
    return InferenceRequest(peer=make_peer(actor_id, incarnation), number=number, inputs=inputs)


def taken(batcher: Batcher) -> list[tuple[int, int]]:
    return [(int(r.peer.actor_id), r.number) for r in batcher.take()]


def compute(batcher: Batcher, clock: Clock, took_s: float) -> None:
    batcher.take()
    clock.now_s += took_s
    batcher.computed()


@pytest.mark.behaviour(number=32)
def test_a_batch_is_due_at_so_many_rows_or_after_so_long() -> None:
    clock = Clock()
    batcher = Batcher(ServingConfig(min_batch=4, max_wait_s=0.5), clock)
    assert batcher.wait_s() is None
    batcher.add(request(0, rows=2))
    clock.now_s += 0.2
    batcher.add(request(1))
    assert batcher.wait_s() == pytest.approx(0.3)
    clock.now_s += 0.3
    assert batcher.wait_s() == pytest.approx(0.0)
    clock.now_s -= 0.3
    batcher.add(request(2))
    assert batcher.wait_s() == 0.0
    assert taken(batcher) == [(0, 1), (1, 1), (2, 1)]
    assert batcher.wait_s() is None


def test_a_batch_has_at_most_so_many_rows_the_oldest_first_and_splits_no_actor() -> None:
    clock = Clock()
    batcher = Batcher(ServingConfig(min_batch=1, max_batch=5), clock)
    for actor_id, rows in enumerate((3, 3, 9)):
        clock.now_s += 0.01
        batcher.add(request(actor_id, rows))
    assert [taken(batcher) for _ in range(3)] == [[(0, 1)], [(1, 1)], [(2, 1)]]


def test_by_default_half_of_the_actors_that_asked_lately_are_waited_for() -> None:
    clock = Clock()
    batcher = Batcher(ServingConfig(max_wait_s=60.0), clock)
    for actor_id in range(4):
        batcher.add(request(actor_id))
    batcher.take()
    batcher.add(request(0, number=2))
    assert batcher.wait_s() == pytest.approx(60.0)
    batcher.add(request(1, number=2))
    assert batcher.wait_s() == 0.0
    batcher.take()
    clock.now_s += 5.0
    batcher.add(request(0, number=3))
    assert batcher.wait_s() == 0.0, "the others are dead, or wait for something else"


def test_slow_batches_wait_for_three_quarters_of_the_actors_but_only_by_default() -> None:
    settings = (0, 0.01), (4, 0.01), (0, 0.0)
    waits = []
    for min_batch, max_wait_s in settings:
        clock = Clock()
        batcher = Batcher(ServingConfig(min_batch=min_batch, max_wait_s=max_wait_s), clock)
        for actor_id in range(8):
            batcher.add(request(actor_id))
        compute(batcher, clock, took_s=0.03)
        for actor_id in range(5):
            batcher.add(request(actor_id, number=2))
        waits.append(batcher.wait_s())
    assert waits == [pytest.approx(0.03), 0.0, 0.0], "a slow batch is worth the time it takes"


@pytest.mark.behaviour(number=33)
def test_requests_of_the_dead_are_dropped_and_repeated_ones_computed_once() -> None:
    clock = Clock()
    batcher = Batcher(ServingConfig(min_batch=9, max_wait_s=1.0), clock)
    batcher.add(request(0, number=7))
    batcher.add(request(1))
    clock.now_s += 0.75
    batcher.add(request(1))
    assert batcher.wait_s() == pytest.approx(0.25), "a repeated request does not wait longer"
    batcher.add(request(0, incarnation=1))
    batcher.add(request(0, number=8))
    assert sorted(taken(batcher)) == [(0, 1), (1, 1)]


def test_only_requests_with_the_same_inputs_share_a_batch() -> None:
    batcher = Batcher(ServingConfig(min_batch=1), Clock())
    batcher.add(request(0, noise=True))
    batcher.add(request(1))
    batcher.add(request(2, noise=True))
    assert [taken(batcher), taken(batcher)] == [[(0, 1), (2, 1)], [(1, 1)]]


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"serving\.min_batch is 9, more than .* 8; lower it"):
        ServingConfig(min_batch=9, max_batch=8)
