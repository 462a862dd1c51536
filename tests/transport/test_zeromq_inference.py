"""Requests and answers over real sockets: encrypted or not, and across a server's death."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asyncrl.core.inference import InferenceAnswer, InferenceRequest
from asyncrl.core.types import ModelVersion
from asyncrl.transport.zeromq import ZmqInferenceAddress, ZmqTransport, ZmqTransportConfig
from asyncrl.transport.zeromq_inference import ZmqInferenceClient, ZmqInferenceListener
from asyncrl.transport.zeromq_socket import Curve
from tests.support.helpers import wait_until
from tests.support.sample_messages import PEER, SCHEMA, make_peer, same

TCP = ZmqTransportConfig(bind="tcp://127.0.0.1")
DEADLINE_S = 20.0
OBS = np.arange(12, dtype=np.uint8).reshape(2, 6)
REQUEST = InferenceRequest(peer=PEER, number=3, inputs={"obs": OBS, "memory": np.ones((2, 0))})
ANSWER = InferenceAnswer(
    number=3, version=ModelVersion(7), env_steps=9, outputs={"outputs": OBS / 2}, error="no"
)


@pytest.fixture(params=["ipc", "tcp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> ZmqInferenceAddress:
    tmp_path.chmod(0o700)
    config = TCP if request.param == "tcp" else ZmqTransportConfig()
    return ZmqTransport.of(tmp_path, schema=SCHEMA, config=config).inference()


@pytest.fixture
def client(address: ZmqInferenceAddress) -> Iterator[ZmqInferenceClient]:
    with closing(address.connect(PEER)) as client:
        yield client


def received(listener: ZmqInferenceListener) -> list[InferenceRequest]:
    requests: list[InferenceRequest] = []

    def arrived() -> bool:
        requests.extend(listener.receive(0.02))
        return bool(requests)

    wait_until(arrived, DEADLINE_S, "a request")
    return requests


def test_what_was_sent_is_received_also_by_the_server_that_replaces_a_dead_one(
    address: ZmqInferenceAddress, client: ZmqInferenceClient
) -> None:
    client.send(REQUEST)
    with closing(address.listen()) as listener:
        (request,) = received(listener)
        assert same(request, REQUEST)
        listener.answer(make_peer(5), ANSWER)  # it is gone: nothing happens
        listener.answer(PEER, ANSWER)
        answer = client.receive(DEADLINE_S)
        assert same(answer, ANSWER)
        assert client.receive(0.0) is None
    if address.endpoint.startswith("ipc"):
        path = Path(address.endpoint.removeprefix("ipc://"))
        assert not path.exists()
        path.touch()  # as after a kill
    with closing(address.listen()) as listener:
        client.send(replace(REQUEST, number=4))
        requests = received(listener)
        assert [request.number for request in requests] == [4]


def test_requests_under_another_name_or_of_another_run_are_dropped(
    address: ZmqInferenceAddress, client: ZmqInferenceClient
) -> None:
    foreign = replace(address, wire=replace(address.wire, run_id="another"))
    with closing(address.listen()) as listener, closing(foreign.connect(PEER)) as stranger:
        stranger.send(REQUEST)
        client.send(replace(REQUEST, peer=make_peer(8)))
        client.send(REQUEST)
        requests = received(listener)
        assert [request.peer for request in requests] == [PEER]


def test_over_tcp_only_actors_of_the_run_are_heard(tmp_path: Path) -> None:
    address = ZmqTransport.of(tmp_path, schema=SCHEMA, config=TCP).inference()
    assert address.server_curve is not None
    intruder = replace(address, actor_curve=Curve.make(address.server_curve.public))
    with (
        closing(address.listen()) as listener,
        closing(intruder.connect(make_peer(1))) as stranger,
        closing(address.connect(PEER)) as client,
    ):
        stranger.send(replace(REQUEST, peer=make_peer(1)))
        client.send(REQUEST)
        assert [request.peer for request in received(listener)] == [PEER]
        assert not listener.receive(0.2)
