"""Requests and answers over real sockets, and across a server's death."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asyncrl.core.errors import WireError
from asyncrl.core.inference import (
    InferenceAnswer,
    InferenceClient,
    InferenceListener,
    InferenceRequest,
)
from asyncrl.core.types import ModelVersion
from asyncrl.transport.unix_inference import UnixInferenceAddress
from asyncrl.transport.wire import MAX_HEADER_BYTES
from asyncrl.transport.zeromq import ZmqTransport
from tests.support.helpers import wait_until
from tests.support.sample_messages import PEER, SCHEMA, make_peer, same

DEADLINE_S = 20.0
OBS = np.arange(12, dtype=np.uint8).reshape(2, 6)
REQUEST = InferenceRequest(peer=PEER, number=3, inputs={"obs": OBS, "memory": np.ones((2, 0))})
ANSWER = InferenceAnswer(
    number=3, version=ModelVersion(7), env_steps=9, outputs={"outputs": OBS / 2}, error="no"
)


@pytest.fixture
def unix(tmp_path: Path) -> UnixInferenceAddress:
    transport = ZmqTransport.loopback(schema=SCHEMA)
    address = transport.inference(tmp_path)
    assert isinstance(address, UnixInferenceAddress)
    return address


@pytest.fixture
def client(unix: UnixInferenceAddress) -> Iterator[InferenceClient]:
    with closing(unix.connect()) as client:
        yield client


def received(listener: InferenceListener, client: InferenceClient) -> list[InferenceRequest]:
    """Return what arrives while the client waits, which connects it if it is not connected."""
    requests: list[InferenceRequest] = []

    def arrived() -> bool:
        assert client.receive(0.0) is None
        requests.extend(listener.receive(0.02))
        return bool(requests)

    wait_until(arrived, DEADLINE_S, "a request")
    return requests


def test_what_was_sent_is_received_also_by_the_server_that_replaces_a_dead_one(
    unix: UnixInferenceAddress, client: InferenceClient
) -> None:
    client.send(REQUEST)
    with closing(unix.listen()) as listener:
        (request,) = received(listener, client)
        assert same(request, REQUEST)
        listener.answer(make_peer(5), ANSWER)  # it is gone: nothing happens
        listener.answer(PEER, ANSWER)
        answer = client.receive(DEADLINE_S)
        assert same(answer, ANSWER)
        assert client.receive(0.0) is None
    assert not unix.path.exists()
    unix.path.touch()  # as after a kill
    with closing(unix.listen()) as listener:
        client.send(replace(REQUEST, number=4))
        requests = received(listener, client)
        assert [request.number for request in requests] == [4]


def test_requests_under_another_name_or_of_another_run_are_dropped(
    unix: UnixInferenceAddress, client: InferenceClient
) -> None:
    foreign = replace(unix, wire=replace(unix.wire, run_id="another"))
    with closing(unix.listen()) as listener, closing(foreign.connect()) as stranger:
        stranger.send(REQUEST)
        client.send(replace(REQUEST, peer=make_peer(8)))
        client.send(REQUEST)
        requests = received(listener, client)
        assert [request.peer for request in requests] == [PEER]


def test_large_messages_pass_in_parts_while_both_sides_wait_for_each_other(
    unix: UnixInferenceAddress,
) -> None:
    large = np.random.default_rng(0).integers(0, 255, (300, 10_000), dtype=np.uint8)
    answers = []
    with closing(unix.listen()) as listener, closing(unix.connect()) as client:
        client.send(replace(REQUEST, inputs={"obs": large}))
        client.send(replace(REQUEST, inputs={"obs": large}))  # not while the first is on its way
        requests = received(listener, client)
        assert [request.inputs["obs"].tobytes() for request in requests] == [large.tobytes()]
        listener.answer(PEER, replace(ANSWER, outputs={"outputs": large}))
        listener.answer(PEER, ANSWER)  # neither

        def arrived() -> bool:
            assert not listener.receive(0.0)
            answers.append(client.receive(0.0))
            return answers[-1] is not None

        wait_until(arrived, DEADLINE_S, "an answer")
        assert answers[-1].outputs["outputs"].tobytes() == large.tobytes()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 16,
        struct.pack("<2Q", 1, (64 << 20) + 33),
        struct.pack("<2Q", MAX_HEADER_BYTES + 1, 0),
        struct.pack("<2Q", 1, 3) + b"abcd",
        struct.pack("<Q", 2),  # and no more
    ],
)
def test_a_connection_that_sends_nonsense_or_ends_is_closed_and_others_are_served(
    unix: UnixInferenceAddress, data: bytes
) -> None:
    with (
        closing(unix.listen()) as listener,
        closing(unix.connect()) as client,
        socket.socket(socket.AF_UNIX) as stranger,
    ):
        stranger.connect(str(unix.path))
        stranger.sendall(data)
        if len(data) == 8 and data[0] == 2:
            stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(0.0)

        def closed() -> bool:
            assert not listener.receive(0.02)
            try:
                return stranger.recv(1) == b""
            except BlockingIOError:
                return False

        wait_until(closed, DEADLINE_S, "the end of the connection")
        client.send(REQUEST)
        assert same(received(listener, client)[0], REQUEST)


def test_an_actor_that_dies_or_takes_anothers_name_gets_no_answer(
    unix: UnixInferenceAddress, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(unix.listen()) as listener, closing(unix.connect()) as client:
        client.send(REQUEST)
        received(listener, client)
        with closing(unix.connect()) as liar:
            liar.send(replace(REQUEST, peer=make_peer(7)))
            received(listener, liar)
            liar.send(replace(REQUEST, peer=PEER))

            def is_noticed() -> bool:
                assert not listener.receive(0.0)
                return "calls itself" in caplog.text

            wait_until(is_noticed, DEADLINE_S, "the lie")
        client.close()
        listener.answer(PEER, ANSWER)
        listener.answer(PEER, ANSWER)
    with closing(unix.connect()) as late:
        assert late.receive(0.0) is None
    assert not unix.path.exists()


def test_a_request_that_no_server_would_take_is_refused_where_it_is_made(
    client: InferenceClient,
) -> None:
    large = np.broadcast_to(np.uint8(0), (65, 1 << 20))
    with pytest.raises(WireError, match="raise that limit, or lower the number of environments"):
        client.send(replace(REQUEST, inputs={"obs": large}))
