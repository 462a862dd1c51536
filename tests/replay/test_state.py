"""A replay of any kind continues from what another one saved, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.errors import CheckpointError
from asyncrl.core.messages import Experience
from asyncrl.core.replay_buffer import AcceptsPriorities
from asyncrl.core.types import Array
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.sequences import PrioritizedSequenceReplayConfig, SequenceReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from tests.replay import test_hindsight as hindsight
from tests.replay.segments import streams
from tests.support.helpers import copied, same
from tests.support.scale import examples
from tests.support.streams import make_outbox, play, schema

LENGTH = 4
SEQUENCES: dict[str, Any] = {"sequence_length": 3, "burn_in": 1, "stride": 2}


@dataclass(frozen=True)
class Case:
    configure: Callable[[int], Any]
    """Given a capacity."""

    def build(self, seed: int = 0, capacity: int = 24) -> Any:
        config = self.configure(capacity)
        return config.build(schema(LENGTH, config.lookahead), seed)

    def messages(self, ends: list[list[str]]) -> list[Experience]:
        outbox = make_outbox(len(ends), LENGTH, self.configure(24).lookahead)
        return play(ends, outbox)[1]


RINGS = {
    "uniform": Case(lambda size: UniformReplayConfig(capacity=size, n_step=2)),
    "hindsight": Case(
        lambda size: hindsight.config(capacity=size, relabelled=0.0).for_goals(
            hindsight.GOALS, None
        )
    ),
    "prioritized": Case(lambda size: PrioritizedReplayConfig(capacity=size)),
    "prioritized, on a device": Case(
        lambda size: PrioritizedReplayConfig(capacity=size, device="cpu")
    ),
    "prioritized, buffer": Case(
        lambda size: PrioritizedReplayConfig(capacity=size, n_step=3, normaliser="buffer")
    ),
    "sequences": Case(lambda size: SequenceReplayConfig(capacity=size, **SEQUENCES)),
    "prioritized sequences": Case(
        lambda size: PrioritizedSequenceReplayConfig(capacity=size, **SEQUENCES)
    ),
}
CASES = RINGS | {"trajectories": Case(lambda size: TrajectoryQueueConfig(capacity=size))}

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_ring = pytest.mark.parametrize("case", RINGS.values(), ids=RINGS)

SOME = [["", "", "T", "", "C", "", ""] * 6, [""] * 42]


def push(buffer: Any, messages: list[Experience]) -> None:
    for message in messages:
        buffer.push(message.columns, message.rows)


def use(buffer: Any, times: int = 3) -> list[bytes]:
    """Sample, update priorities, and return the sampled bytes."""
    sampled = []
    for k in range(times):
        if not len(buffer):
            break
        batch = buffer.sample(6)
        sampled += [name.encode() + np.asarray(batch[name]).tobytes() for name in sorted(batch)]
        if isinstance(buffer, AcceptsPriorities):
            buffer.update_priorities(batch["index"], np.arange(6) % 4 + 0.5 * k)
    return sampled


@every_case
@given(streams(), streams(), st.integers(0, 60))
@settings(max_examples=examples(25, usual=8), deadline=None)
def test_goes_on_with_the_same_bits(
    case: Case, before: list[list[str]], other: list[list[str]], later: int
) -> None:
    first, second = case.build(seed=1), case.build(seed=2)
    push(first, case.messages([env * 3 for env in before]))
    push(second, case.messages(other))
    use(first)
    use(second, 1)
    second.load_state(first.state())
    assert len(first) == len(second)
    assert same(first.state(), second.state())
    rest = case.messages([["", "", "C", "T"] * (1 + later // 4)])
    for message in rest:
        push(first, [message])
        push(second, [message])
        assert use(first) == use(second)
    assert same(first.state(), second.state())


@every_case
def test_what_was_loaded_is_a_copy(case: Case) -> None:
    source, taker, untouched = case.build(), case.build(), case.build()
    push(source, case.messages(SOME))
    state = source.state()
    taker.load_state(state)
    untouched.load_state(copied(state))
    for value in state.values():
        value[...] = 0
    assert use(taker) == use(untouched)


@every_ring
@pytest.mark.parametrize("capacity", [200])
def test_larger_ring_takes_all_of_a_smaller_one(case: Case, capacity: int) -> None:
    small, large = case.build(), case.build(capacity=capacity)
    push(small, case.messages(SOME))
    push(large, case.messages(SOME))
    large.load_state(small.state())
    assert len(large) == len(small)
    seen = {row.tobytes() for row in np.asarray(small.sample(400)["obs"])}
    assert seen == {row.tobytes() for row in np.asarray(large.sample(400)["obs"])}
    push(large, case.messages([[""] * 300]))
    assert len(large) > 0


@every_ring
def test_smaller_ring_refuses_a_larger_one(case: Case) -> None:
    large, small = case.build(capacity=40), case.build(capacity=24)
    push(large, case.messages(SOME))
    push(small, case.messages(SOME))
    before = small.state()
    with pytest.raises(CheckpointError, match=r"replay\.capacity to at least 40"):
        small.load_state(large.state())
    assert same(small.state(), before)


@every_case
def test_state_that_does_not_fit_changes_nothing(case: Case) -> None:
    buffer, twin, source = case.build(), case.build(), case.build()
    for each in (buffer, twin):
        push(each, case.messages([["", "T", "", ""] * 5]))
    push(source, case.messages(SOME))
    good = source.state()
    wrong: list[dict[str, Array]] = [{}, {**good, "strange": np.zeros(2)}]
    for name, value in good.items():
        wrong.append({key: v for key, v in good.items() if key != name})
        wrong.append({**good, name: np.zeros((*value.shape, 2), value.dtype)})
        if name not in {"kind", "random", "schema"}:  # text, of whatever dtype
            wrong.append({**good, name: value.astype(np.complex64)})
    for state in wrong:
        with pytest.raises(CheckpointError):
            buffer.load_state(state)
        assert same(buffer.state(), twin.state())
    assert use(buffer) == use(twin)


@every_ring
@given(streams(), st.integers(0, 20), st.integers(1, 8))
@settings(max_examples=examples(25, usual=8), deadline=None)
def test_staged_segments_are_unseen_until_the_push_is_finished(
    case: Case, ends: list[list[str]], used: int, free_slots: int
) -> None:
    segments = schema(LENGTH, case.configure(24).lookahead)
    twin = case.build()
    with pytest.MonkeyPatch.context() as patch:
        room = free_slots * segments.segment_bytes
        patch.setattr("asyncrl.replay.ring_config.PART_BYTES", room)
        buffer = case.build()
    for k, message in enumerate(case.messages([env * 4 for env in ends])):
        finish = buffer.stage(message.columns, message.rows, lambda: None)
        assert len(buffer) == len(twin)
        assert use(buffer, used % (k + 1)) == use(twin, used % (k + 1))
        assert same(buffer.state(), twin.state())
        assert finish() == twin.push(message.columns, message.rows)
    assert use(buffer) == use(twin)
    assert same(buffer.state(), twin.state())


@every_case
def test_segments_of_another_schema_are_refused_with_the_difference(case: Case) -> None:
    config = case.configure(24)
    buffer = case.build()
    other = config.build(schema(LENGTH + 1, config.lookahead), 0)
    with pytest.raises(CheckpointError, match="length: 5, here 4"):
        buffer.load_state(other.state())


def test_saved_by_one_kind_is_refused_by_another() -> None:
    prioritized, uniform = RINGS["prioritized"].build(), RINGS["uniform"].build()
    push(prioritized, RINGS["prioritized"].messages(SOME))
    with pytest.raises(CheckpointError, match="is a PrioritizedReplay, this one a UniformReplay"):
        uniform.load_state(prioritized.state())


def test_queue_refuses_more_than_it_has_room_for() -> None:
    case = CASES["trajectories"]
    large, small = case.build(capacity=100), case.build(capacity=8)
    push(large, case.messages(SOME))
    with pytest.raises(CheckpointError, match=r"replay\.capacity=8"):
        small.load_state(large.state())
    assert len(small) == 0
