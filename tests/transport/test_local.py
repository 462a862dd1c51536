from __future__ import annotations

import pickle

import numpy as np
import pytest

from asyncrl.core.errors import TransportError
from asyncrl.core.messages import Experience
from asyncrl.transport.local import LocalTransport
from tests.support.sample_messages import PEER, SCHEMA, make_experience, make_hello


def test_experience_is_handed_over_without_a_copy() -> None:
    transport = LocalTransport(SCHEMA)
    learner, actor = transport.listen(), transport.connect(PEER)
    actor.hello(make_hello())
    learner.poll(0.0)
    sent = make_experience(1)
    assert actor.send(sent, 0.0)
    (received,) = learner.poll(0.0)
    assert isinstance(received, Experience)
    assert np.shares_memory(received.columns["obs"], sent.columns["obs"])


def test_hello_is_sent_once_for_repeated_calls() -> None:
    transport = LocalTransport(SCHEMA)
    learner, actor = transport.listen(), transport.connect(PEER)
    for _ in range(3):
        assert not actor.hello(make_hello())
    assert len(learner.poll(0.0)) == 1
    assert actor.hello(make_hello())
    assert learner.poll(0.0) == []


def test_it_has_one_learner() -> None:
    transport = LocalTransport(SCHEMA)
    transport.listen()
    with pytest.raises(TransportError, match="already"):
        transport.listen()


def test_it_stays_in_its_process() -> None:
    with pytest.raises(TransportError, match="another process"):
        pickle.dumps(LocalTransport(SCHEMA))
