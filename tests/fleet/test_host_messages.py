"""What must arrive does, once and in order, and nothing else is believed."""

from __future__ import annotations

import json
import random

import pytest

from asyncrl.core.errors import WireError
from asyncrl.core.launcher import ActorExit, ProgressReport
from asyncrl.core.messages import Peer
from asyncrl.core.types import ActorId
from asyncrl.fleet.host_messages import (
    Conversation,
    decode,
    encode,
    exit_of,
    peer_of,
    plain_exit,
    report_of,
)
from asyncrl.transport.zeromq_hosts import MAX_BYTES


@pytest.mark.parametrize("seed", range(6))
def test_items_arrive_once_and_in_order_over_a_bad_network(seed: int) -> None:
    draw = random.Random(seed)
    sides = Conversation(), Conversation()
    said: tuple[list[int], list[int]] = ([], [])
    heard: tuple[list[int], list[int]] = ([], [])
    ways: tuple[list[bytes], list[bytes]] = ([], [])

    def turn(side: int) -> None:
        ways[side].append(sides[side].message())
        draw.shuffle(ways[side])
        while ways[side] and draw.random() < 0.6:
            data = ways[side].pop() if draw.random() < 0.7 else ways[side][-1]
            if draw.random() < 0.8:
                heard[1 - side].extend(i["number"] for i in sides[1 - side].take(decode(data)))

    for number in range(200):
        side = draw.randrange(2)
        sides[side].say(number=number)
        said[side].append(number)
        turn(draw.randrange(2))
    while not all(side.is_acknowledged for side in sides):
        turn(draw.randrange(2))
    assert heard == (said[1], said[0])


def test_an_exit_comes_back_identical() -> None:
    ended = ActorExit(
        peer=Peer(actor_id=ActorId(3), incarnation=7),
        code=-11,
        text="its stacks",
        error="ValueError: no",
        began=False,
        last=ProgressReport(5, 50, waiting=True, waits=2),
        peak_bytes=1 << 30,
    )
    assert exit_of(decode(json.dumps(plain_exit(ended)).encode())) == ended


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"[1]",
        b"{",
        b"[" * 100_000,
        b'"' + b"a" * (1 << 20) + b'"',
        b"1" * 5000,
        b'{"host": "\xed\xa0\x80"}',
        '{"host": "a"}'.encode("utf-16"),
        rb'{"items": [[1, {"leaves": "\udfff\ud800"}]]}',
        rb'{"\ud800": 1}',
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(data)


def test_text_of_this_side_always_arrives() -> None:
    said = {"text": "FileNotFoundError: 'caf\udce9'", "host": "caf\u00e9 \U0001f600 \x00"}
    heard = {"text": "FileNotFoundError: 'caf?'", "host": "caf\u00e9 \U0001f600 \x00"}
    assert decode(encode(said)) == heard


def test_fields_of_another_kind_are_refused() -> None:
    for peer in ([1], [1, "2"], [-1, 0], [0, -1], {"0": 1}, [1 << 60, 0]):
        with pytest.raises(WireError, match="incarnation"):
            peer_of(peer)
    for report in ([1, 2, 3], [1, 2, 3, -4], [1, 2, 3, 4.5], None):
        with pytest.raises(WireError, match="heartbeats"):
            report_of(report)
    with pytest.raises(WireError, match="exit"):
        exit_of({"ended": [0, 0], "code": 0})
    with pytest.raises(WireError, match="lacks"):
        Conversation().take({"heard": 0})


def test_exits_with_long_texts_take_several_messages() -> None:
    one, other = Conversation(), Conversation()
    peers = [Peer(actor_id=ActorId(i), incarnation=0) for i in range(16)]
    for peer in peers:
        one.say(**plain_exit(ActorExit(peer=peer, code=1, text="\0" * 99_999, error="\0" * 99_999)))
    reports = [[[4095, 1 << 40], [1 << 50] * 4, 1 << 40, 1 << 22]] * 4096
    heard: list[Peer] = []
    while not one.is_acknowledged:
        message = one.message(actors=reports)
        assert len(message) <= MAX_BYTES
        assert one.has_news or len(heard) == 15
        ended = [exit_of(item) for item in other.take(decode(message))]
        assert not any(each.text or each.error for each in ended), "no control characters"
        heard += [each.peer for each in ended]
        one.take(decode(other.message()))
    assert heard == peers
