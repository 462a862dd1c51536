"""The receiving thread: stores what the limiter lets in, acknowledges what is stored, no sooner."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from asyncrl.checkpoint.checkpoint import Checkpoint
from asyncrl.core.errors import CheckpointError, TransportError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import EnvChange, EvaluationReport, Message, ModelInfo, Peer
from asyncrl.core.transport import Topic
from asyncrl.core.types import Columns, IntArray, ModelVersion, Params
from asyncrl.learner.config import RateLimiterConfig, ReplayBufferProxyConfig
from asyncrl.learner.rate_limiter import build_limiter
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.metrics.metrics import describe
from tests.support.helpers import wait_until
from tests.support.sample_messages import (
    PEER,
    SCHEMA,
    make_experience,
    make_hello,
    make_peer,
    make_report,
)

SOON_S = 10.0
PER_MESSAGE = 2 * SCHEMA.length  # transitions


class FakeLink:
    """A learner's end into which a test puts messages; polls until it is woken."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[list[Message]] = queue.SimpleQueue()
        self.acknowledged: list[tuple[Peer, int]] = []
        self.woken = 0
        self.counters = {"malformed": 0}
        self.granted: dict[Peer, int] = {}

    def put(self, *messages: Message) -> None:
        self.inbox.put(list(messages))

    def poll(self, timeout_s: float, waited: Callable[[], object]) -> list[Message]:
        try:
            return self.inbox.get(timeout=6 * SOON_S) if timeout_s else self.inbox.get_nowait()
        except queue.Empty:
            return []

    def wake(self) -> None:
        self.woken += 1
        self.inbox.put([])

    def acknowledge(self, peer: Peer, seq: int, granted: int = 0) -> None:
        if granted:
            self.granted[peer] = granted
        else:
            self.acknowledged.append((peer, seq))

    def change_env(self, change: EnvChange) -> None: ...

    def publish(self, model: ModelInfo, topic: Topic) -> None: ...

    def stop_actors(self) -> None: ...

    def close(self) -> None: ...


class ListBuffer:
    """Keeps the numbers of the messages whose segments it was given."""

    capacity = 10**9

    def __init__(self) -> None:
        self.pushed: list[int] = []
        self.error: Exception | None = None

    def push(self, columns: Columns, rows: IntArray) -> int:
        if self.error is not None:
            raise self.error
        self.pushed.append(int(columns["action"][0, 0]))
        return len(rows) * SCHEMA.length

    def sample(self, batch_size: int) -> Columns:
        return {"action": np.zeros(batch_size)}

    def __len__(self) -> int:
        return len(self.pushed) * PER_MESSAGE


class Station:
    """A proxy between a fake link and a fake buffer, with a separate limiter."""

    def __init__(
        self,
        samples_per_insert: float = 0.0,
        min_size: int = PER_MESSAGE,
        *,
        overflow: Literal["block", "drop"] = "block",
        buffer: ListBuffer | None = None,
    ) -> None:
        self.link = FakeLink()
        self.buffer = ListBuffer() if buffer is None else buffer
        self.interrupter = Interrupter()
        config = RateLimiterConfig(samples_per_insert=samples_per_insert, min_size=min_size)
        limiter = build_limiter(config, max_insert=PER_MESSAGE, batch_size=4)
        self.proxy = ReplayBufferProxy(
            self.link,
            self.buffer,
            limiter,
            self.interrupter,
            ReplayBufferProxyConfig(overflow=overflow),
        )

    def stored(self, *seqs: int) -> None:
        """Wait until exactly these messages are stored and acknowledged."""
        wait_until(lambda: len(self.link.acknowledged) >= len(seqs), SOON_S, f"{seqs} stored")
        assert self.buffer.pushed == list(seqs)
        assert [seq for _, seq in self.link.acknowledged] == list(seqs)

    def handled(self) -> None:
        """Wait until the proxy has dealt with all that was put in."""
        self.link.put(evaluation(-1.0))
        wait_until(self.proxy.take_evaluations, SOON_S, "the messages to be handled")


@contextmanager
def running(station: Station) -> Iterator[Station]:
    """Run the receiving thread."""
    station.proxy.start()
    try:
        yield station
    finally:
        station.proxy.close()
    station.interrupter.raise_if_failed()


@pytest.fixture
def slow_station() -> Iterator[Station]:
    """A station that lets two messages in, and one more for each batch of 8 * PER_MESSAGE."""
    with running(Station(samples_per_insert=8.0)) as station:
        yield station


def evaluation(score: float) -> EvaluationReport:
    return EvaluationReport(peer=PEER, model_version=ModelVersion(1), score=score, record={})


def test_limiter_holds_back_what_would_come_too_early(slow_station: Station) -> None:
    station = slow_station
    station.link.put(*(make_experience(seq) for seq in range(1, 6)))
    station.handled()
    station.stored(1, 2)
    balance = station.proxy.ledger.balance()
    assert (balance.stored, balance.in_flight) == (2 * PER_MESSAGE, 3 * PER_MESSAGE)
    assert station.proxy.wait_may_sample(8 * PER_MESSAGE, timeout_s=SOON_S)
    station.proxy.sample(8 * PER_MESSAGE)  # its poll ends only because it is woken
    station.stored(1, 2, 3)


def test_draining_stores_whatever_the_limiter_says(slow_station: Station) -> None:
    station = slow_station
    station.link.put(*(make_experience(seq) for seq in range(1, 6)))
    station.handled()
    station.proxy.drain()
    station.stored(1, 2, 3, 4, 5)
    station.link.put(make_experience(6))
    station.stored(1, 2, 3, 4, 5, 6)


@pytest.mark.behaviour(number=24)
@pytest.mark.fault("F30")
def test_what_may_not_be_inserted_is_dropped_if_asked_for() -> None:
    with running(Station(samples_per_insert=8.0, overflow="drop")) as station:
        station.link.put(*(make_experience(seq) for seq in range(1, 6)))
        station.handled()
        assert station.buffer.pushed == [1, 2]
        assert [seq for _, seq in station.link.acknowledged] == [1, 2, 3, 4, 5], "no message waits"
        balance = station.proxy.ledger.balance()
        assert (balance.stored, balance.dropped) == (2 * PER_MESSAGE, 3 * PER_MESSAGE)
        assert (balance.produced, balance.in_flight) == (5 * PER_MESSAGE, 0)
        assert station.proxy.ledger.dropped == {"overflow": 3 * PER_MESSAGE}
        station.proxy.sample(8 * PER_MESSAGE)
        station.link.put(make_experience(6), make_experience(7))
        station.handled()
        station.proxy.drain()
        station.link.put(make_experience(8))
        station.handled()
        assert station.buffer.pushed == [1, 2, 6, 8]
        assert station.proxy.record()["ledger/dropped"] == 4 * PER_MESSAGE


class GuidedBuffer(ListBuffer):
    """Copies and samples when a semaphore allows it; keeps the order of events."""

    def __init__(self) -> None:
        super().__init__()
        self.may_push, self.may_copy = threading.Semaphore(0), threading.Semaphore(0)
        self.may_sample = threading.Semaphore(0)
        self.done: list[str] = []

    def push(self, columns: Columns, rows: IntArray) -> int:
        self.done.append("push")
        assert self.may_push.acquire(timeout=SOON_S)
        self.done.append("pushed")
        return super().push(columns, rows)

    def sample(self, batch_size: int) -> Columns:
        self.done.append("sample")
        assert self.may_sample.acquire(timeout=SOON_S)
        self.done.append("sampled")
        return super().sample(batch_size)

    def awaited(self, event: str, times: int = 1) -> None:
        wait_until(lambda: self.done.count(event) >= times, SOON_S, f"{event} {times}")


class StagingBuffer(GuidedBuffer):
    """Makes four copies before it pushes."""

    def stage(
        self, columns: Columns, rows: IntArray, pause: Callable[[], object]
    ) -> Callable[[], int]:
        self.done.append("stage")
        for _ in range(4):
            assert self.may_copy.acquire(timeout=SOON_S)
            self.done.append("copy")
            pause()
        return lambda: self.push(columns, rows)


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    other = threading.Thread(target=act)
    other.start()
    yield
    other.join(SOON_S)


def done_between_parts(station: Station, act: Callable[[], object]) -> None:
    """Have a message stored in parts, with another thread active while the first part is stored."""
    assert isinstance(station.buffer, GuidedBuffer)
    station.link.put(make_experience(1))
    station.buffer.awaited("push")
    with meanwhile(act):
        wait_until(station.proxy._turnstile.locked, SOON_S, "the other to stand in line")
        station.buffer.may_push.release(2)
        station.buffer.may_sample.release()


@pytest.mark.behaviour(number=26)
def test_sampling_waits_for_no_more_than_a_part_of_a_long_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncrl.learner.replay_buffer_proxy.PART_BYTES", 1)
    buffer = GuidedBuffer()
    with running(Station(buffer=buffer)) as station:
        done_between_parts(station, lambda: station.proxy.sample(4))
        wait_until(lambda: station.link.acknowledged, SOON_S, "the whole message to be stored")
        assert buffer.done == ["push", "pushed", "sample", "sampled", "push", "pushed"]
        assert station.proxy.ledger.balance().stored == PER_MESSAGE


def test_copies_of_a_part_give_way_to_one_sample() -> None:
    buffer = StagingBuffer()
    with running(Station(buffer=buffer)) as station:
        station.link.put(make_experience(1))
        buffer.awaited("stage")
        with meanwhile(lambda: station.proxy.sample(4)):
            buffer.awaited("sample")
            buffer.may_copy.release(2)
            buffer.awaited("copy")
            buffer.may_sample.release()
        buffer.awaited("copy", 2)
        assert buffer.done == ["stage", "sample", "copy", "sampled", "copy"]
        with meanwhile(lambda: station.proxy.sample(4)):
            buffer.awaited("sample", 2)
            buffer.may_copy.release(2)
            buffer.awaited("copy", 4)
            buffer.may_sample.release()
        buffer.may_push.release()
        station.stored(1)
        assert buffer.done[5:] == ["sample", "copy", "copy", "sampled", "push", "pushed"]


@pytest.mark.fault("F21")
def test_checkpoint_in_the_middle_of_a_message_counts_what_its_replay_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncrl.learner.replay_buffer_proxy.PART_BYTES", 1)
    buffer = GuidedBuffer()
    states: list[tuple[list[int], Mapping[str, Any]]] = []
    with running(Station(buffer=buffer)) as station:

        def save() -> None:
            _, numbers = station.proxy.state(save_replay=True)
            states.append(([*buffer.pushed], numbers["ledger"]))

        done_between_parts(station, save)
        ((pushed, ledger),) = states
        assert pushed == [1], "of two parts"
        assert (ledger["stored"], ledger["produced"]) == (PER_MESSAGE // 2, PER_MESSAGE)


def test_wait_ends_when_the_run_does(slow_station: Station) -> None:
    slow_station.interrupter.stop("enough")
    assert slow_station.proxy.wait_may_sample(4, timeout_s=SOON_S) is False


def test_actors_are_granted_what_there_is_room_for(slow_station: Station) -> None:
    station, peers = slow_station, [make_peer(0), make_peer(1)]
    room: list[int] = []
    station.link.put(*(make_hello(peer) for peer in peers))
    station.handled()
    granted = dict(station.link.granted)
    assert sum(granted.values()) == 2, "as many messages as the limiter lets in"
    station.link.put(*(make_experience(1, peer) for peer in peers))
    station.handled()
    assert station.link.granted == granted, "there is no room"
    assert station.proxy.blocked
    station.proxy.sample(8 * PER_MESSAGE, before_room=lambda: room.append(station.link.woken))
    wait_until(lambda: sum(station.link.granted.values()) == 3, SOON_S, "the next grant")
    assert room == [0], "called before the thread was woken that asks"
    assert not station.proxy.blocked


def test_a_learner_that_has_waited_is_starved_no_longer(slow_station: Station) -> None:
    """Else actors would go on acting while its first optimisation step takes long."""
    station, peer = slow_station, make_peer(0)
    station.link.put(make_hello(peer))
    station.handled()
    learner = threading.Thread(target=station.proxy.wait_may_sample, args=(4, SOON_S))
    learner.start()
    wait_until(lambda: station.link.woken, SOON_S, "the learner to wait")
    station.link.put(make_experience(1, peer))
    learner.join(SOON_S)
    station.link.put(make_experience(2, peer), make_experience(3, peer))
    station.handled()
    assert station.link.granted == {peer: 2}, "the third is held, and no other is granted"


def test_grants_of_an_actor_that_ended_go_to_others(slow_station: Station) -> None:
    station, peers = slow_station, [make_peer(0), make_peer(1)]
    station.link.put(make_hello(peers[0]))
    station.handled()
    station.link.put(make_hello(peers[1]))
    station.handled()
    assert station.link.granted == {peers[0]: 2, peers[1]: 1}, "each at least one in warm-up"
    station.proxy.ended.append(peers[0])
    station.link.wake()
    wait_until(lambda: station.link.granted.get(peers[1]) == 2, SOON_S, "a grant to the other")


def test_actor_whose_hello_is_read_after_its_end_is_granted_nothing(slow_station: Station) -> None:
    """Nothing would ever return its grants."""
    station, peer = slow_station, make_peer()
    station.proxy.ledger.on_ended(peer, produced=0)
    station.proxy.ended.append(peer)
    station.link.wake()
    wait_until(lambda: not station.proxy.ended, SOON_S, "the end to be noted")
    station.link.put(make_hello(peer))
    station.handled()
    assert station.link.granted == {}


def test_evaluating_processes_are_granted_nothing(slow_station: Station) -> None:
    slow_station.link.put(replace(make_hello(), schema_hash=""))
    slow_station.handled()
    assert slow_station.link.granted == {}


@pytest.mark.fault("F22", "F32")
def test_record_adds_up_and_knows_its_names(slow_station: Station) -> None:
    slow_station.link.put(*(make_experience(seq) for seq in range(1, 5)))
    slow_station.handled()
    record = slow_station.proxy.record()
    assert record["samples_total"] == record["ledger/stored"] == 2 * PER_MESSAGE
    assert record["replay/size"] == 2 * PER_MESSAGE
    parts = ("stored", "dropped", "lost", "in_flight")
    assert record["ledger/produced"] == sum(record[f"ledger/{part}"] for part in parts)
    assert {"ms/recv", "ms/push"} <= set(record)
    assert "link/malformed" not in record, "absent until there is one"
    slow_station.link.counters |= {"malformed": 3, "stale": 1}
    second = slow_station.proxy.record()
    assert not {"ms/recv", "ms/push"} & set(second), "nothing since then"
    assert (second["link/malformed"], second["link/stale"]) == (3.0, 1.0)
    for name, value in (record | second).items():
        assert describe(name) is not None, name
        assert type(value) is float


@pytest.mark.fault("F10")
def test_failure_of_the_buffer_ends_the_run() -> None:
    station = Station()
    station.buffer.error = MemoryError("no room for the ring")
    station.proxy.start()
    station.link.put(make_experience(1))
    assert station.interrupter.wait(SOON_S)
    with pytest.raises(MemoryError, match="no room"):
        station.interrupter.raise_if_failed()
    assert station.link.acknowledged == [], "what is not stored is not acknowledged"
    station.proxy.close()


def test_close_takes_in_what_has_arrived() -> None:
    station = Station()
    station.link.put(make_experience(1), make_experience(2))
    station.proxy.close()  # before it starts, so that all of it has arrived by then
    station.proxy.start()
    station.proxy.close()
    station.stored(1, 2)
    station.proxy.close()
    assert not station.proxy._thread.is_alive()


@pytest.mark.fault("F10")
def test_thread_that_does_not_end_is_reported_and_blocks_no_exit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    station = Station(buffer=(buffer := GuidedBuffer()))
    station.proxy.start()
    station.link.put(make_experience(1))
    with pytest.raises(TransportError, match=r"did not end within 0\.05 s.* stuck in \w+.*:\d+$"):
        station.proxy.close(0.05)
    assert station.proxy.hangs
    monkeypatch.setattr("asyncrl.learner.replay_buffer_proxy._HELD_S", 0.05)
    with pytest.raises(CheckpointError, match="was not saved"):
        station.proxy.state(save_replay=True)
    buffer.may_push.release()
    station.proxy.close()
    assert not station.proxy.hangs
    assert buffer.pushed == [1]
    assert station.proxy.state(save_replay=True)[1]["ledger"]["stored"] == PER_MESSAGE


@pytest.mark.behaviour(number=25)
def test_storing_and_sampling_at_once_lose_nothing() -> None:
    station = Station(samples_per_insert=1.0)
    n_messages, total = 3000, 0
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        station.proxy.start()
        for seq in range(1, n_messages + 1):
            station.link.put(make_experience(seq))
        while len(station.buffer.pushed) < n_messages:
            assert station.proxy.wait_may_sample(4, SOON_S)
            total += len(station.proxy.sample(4)["action"])
    finally:
        sys.setswitchinterval(interval)
        station.proxy.close()
    station.interrupter.raise_if_failed()
    assert station.buffer.pushed == [seq % 256 for seq in range(1, n_messages + 1)]
    assert [seq for _, seq in station.link.acknowledged] == list(range(1, n_messages + 1))
    assert station.proxy.ledger.balance().stored == n_messages * PER_MESSAGE
    assert total > n_messages


class KeptBuffer(ListBuffer):
    """One that a checkpoint can keep."""

    def state(self) -> Params:
        return {"pushed": np.array(self.pushed)}

    def load_state(self, state: Params) -> None:
        self.pushed = state["pushed"].tolist()


@pytest.mark.fault("F30")
def test_large_replay_is_not_copied_while_others_wait() -> None:
    class Streaming(KeptBuffer):
        def stream(self, room_bytes: int | None = None) -> Any:
            assert room_bytes == 32 << 20, "what is kept has an end"
            return self

    station = Station(buffer=Streaming())
    groups, _ = station.proxy.state(save_replay=True)
    assert list(groups.values()) == [station.buffer], "and not what its `state` returns"
    assert station.proxy.state(save_replay=False)[0] == {}


@pytest.mark.fault("F21")
@pytest.mark.parametrize("save_replay", [True, False])
def test_resumed_run_continues_with_replay_ledger_and_limiter(save_replay: bool) -> None:
    first = Station(samples_per_insert=0.5, buffer=KeptBuffer())
    first.proxy.start()
    first.link.put(*(make_experience(seq) for seq in (1, 2, 3)))
    first.stored(1, 2, 3)
    first.link.put(make_report(produced=5 * PER_MESSAGE))
    first.handled()
    first.proxy.sample(4)
    first.proxy.close()
    groups, numbers = first.proxy.state(save_replay=save_replay)
    stored, produced = 3 * PER_MESSAGE, 5 * PER_MESSAGE
    counts = {"inserted": stored, "sampled": 4, "offset": 0.0}
    counts |= {"samples_per_insert": 0.5, "min_size": PER_MESSAGE}
    assert numbers["limiter"] == (counts if save_replay else {})
    assert numbers["env_steps"] == stored

    second = Station(samples_per_insert=0.5, buffer=KeptBuffer())
    copies = {name: group for name, group in groups.items() if isinstance(group, Mapping)}
    second.proxy.restore(Checkpoint(copies, {"run": numbers}))
    assert second.buffer.pushed == (first.buffer.pushed if save_replay else [])
    _, after = second.proxy.state(save_replay=True)
    assert after["limiter"] == (counts if save_replay else {**counts, "inserted": 0, "sampled": 0})
    lost = produced - stored  # it was on its way when the checkpoint was taken
    assert after["ledger"] == {"produced": produced, "stored": stored, "dropped": 0, "lost": lost}
    assert after["env_steps"] == stored
    assert (numbers["episodes"], after["episodes"]) == (2, 2)
