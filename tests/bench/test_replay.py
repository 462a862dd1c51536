"""Stage `replay`: a full replay and bare columns of the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.bench.load import Load, synthetic_experience
from asyncrl.bench.stage_learner import KINDS, BareColumns, filled, replay_stage
from asyncrl.core.types import Array, IntArray
from asyncrl.replay.prioritized import PrioritizedReplay
from tests.bench.workloads import tiny

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_limits_are_measured(kind: str) -> None:
    stage = replay_stage(Load.of(tiny()), kind)
    sample, push = stage.quantities
    assert sample.case.startswith(f"{kind} sample")
    assert push.case == f"{kind} push"
    assert sample.settings["batch_size"] == 16
    assert len(stage.value()) == len(stage.limit()) == 2
    assert all(rate > 0 for rate in [*stage.value(), *stage.limit()])
    stage.close()
    stage.close()


def test_priorities_change_between_two_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    updated: list[int] = []

    def note(_self: object, index: IntArray, td_error: Array) -> None:
        assert np.ptp(td_error) > 0
        updated.append(len(index))

    monkeypatch.setattr(PrioritizedReplay, "update_priorities", note)
    stage = replay_stage(Load.of(tiny()), "prioritized")
    assert stage.quantities[0].case == "prioritized sample+update"
    stage.value()
    assert set(updated) == {16}


@pytest.mark.parametrize("kind", KINDS)
def test_replay_is_full_before_it_is_measured(kind: str) -> None:
    load = Load.of(tiny())
    message = synthetic_experience(load.schema, load.spec, 3)
    buffer = filled(KINDS[kind](load.capacity), load.schema, message)
    assert len(buffer) == buffer.capacity == 2000


@pytest.mark.parametrize("kind", KINDS)
def test_the_limit_takes_as_many_bytes_as_a_batch_has(kind: str) -> None:
    load = Load.of(tiny())
    message = synthetic_experience(load.schema, load.spec, 3)
    batch = filled(KINDS[kind](load.capacity), load.schema, message).sample(16)
    taken = BareColumns(message, 250).taking(batch, 16)()
    chosen = {"index", "weight", "largest_weight"}  # are in no column
    by_name = dict(zip([name for name in batch if name not in chosen], taken, strict=True))
    for name in ("obs", "next_obs", "action", "reward"):
        assert by_name[name].nbytes == batch[name].nbytes
        assert by_name[name].dtype == batch[name].dtype


def test_the_limit_of_stacked_frames_takes_each_frame_of_them() -> None:
    message = {
        "obs": np.zeros((2, 6, 3, 3), np.uint8),
        "flags": np.zeros((2, 6), np.uint8),
    }
    batch = {"obs": np.zeros((5, 4, 3, 3), np.uint8), "discount": np.zeros(5, np.float32)}
    frames, flags = BareColumns(message, 10).taking(batch, 5)()
    assert frames.nbytes == batch["obs"].nbytes
    assert flags.shape == (5,)


def test_each_batch_of_the_limit_is_of_other_rows() -> None:
    message = {"obs": np.arange(12).reshape(2, 6), "flags": np.zeros((2, 6), np.uint8)}
    take = BareColumns(message, 2).taking({"obs": np.zeros(50, int)}, 50)
    first, second = take()[0], take()[0]
    assert set(first) == set(range(12))
    assert not np.array_equal(first, second)


def test_bare_columns_make_room_in_turn() -> None:
    message = {"obs": np.zeros((2, 3)), "flags": np.zeros((2, 3), np.uint8)}
    bare = BareColumns(message, 5)
    for value in (1.0, 2.0, 3.0):
        bare.copy({**message, "obs": np.full((2, 3), value)})
    everything = bare.taking({"obs": np.zeros(400)}, 400)()[0]
    # Filling it took three messages as well, so the first of these begins in the second slot.
    assert set(everything) == {1.0, 2.0, 3.0}
