"""One transition through every station, in the order in which a reader meets the files."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.actor.actor import Actor
from asyncrl.actor.outbox import Outbox
from asyncrl.actor.step_processor import OneStep
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import Experience, Hello
from asyncrl.core.segment import SegmentConfig, make_schema
from asyncrl.learner.config import RateLimiterConfig
from asyncrl.learner.rate_limiter import build_limiter
from asyncrl.learner.replay_buffer_proxy import ReplayBufferProxy
from asyncrl.replay.uniform import UniformReplayConfig
from tests.support.fakes import COUNTING_SPEC, ConstantAgent, CountingBatch, NoProgress
from tests.support.helpers import wait_until
from tests.support.local_transport import LocalActorLink, LocalLearnerLink, LocalTransport
from tests.support.sample_messages import PEER


@pytest.mark.behaviour(number=22)
@pytest.mark.behaviour(number=31)
def test_one_transition_from_the_environment_to_the_update_and_back() -> None:
    replay = UniformReplayConfig(capacity=64, n_step=1, gamma=0.5)
    columns = OneStep().columns(COUNTING_SPEC, ())
    schema = make_schema(columns, length=2, lookahead=replay.lookahead)
    transport = LocalTransport()
    learner_link, actor_link = LocalLearnerLink(transport), LocalActorLink(transport)
    learner = ConstantAgent(action=7)
    learner.opt_steps = 1234  # actors start on any version
    buffer = replay.build(schema, seed=0)
    limiter = build_limiter(
        RateLimiterConfig(samples_per_insert=0.0, min_size=4), max_insert=4, batch_size=8
    )
    interrupter = Interrupter()
    proxy = ReplayBufferProxy(learner_link, buffer, limiter, interrupter)

    # 1. The learner's first model is there before any action.
    learner_link.publish(learner.model_info(), "act")
    policy = ConstantAgent(action=0)
    segment = SegmentConfig(length=2)
    actor = Actor(
        PEER,
        CountingBatch(n_envs=2, length=3),
        policy,
        OneStep(),
        Outbox(PEER, schema, segment, n_envs=2),
        actor_link,
        progress=NoProgress(),
    )
    actor_link.hello(Hello(peer=PEER, schema_hash=schema.hash()))
    learner_link.poll(0.0)
    actor.start(seed=0)
    assert policy.params["action"] == 7, "the actor acts with the learner's parameters"

    # 2. Three steps: two rows a segment, one that looks ahead; the third step ends the episodes.
    for _ in range(3):
        actor.run_step()

    # 3. One message with one segment of each environment.
    (message,) = [m for m in learner_link.poll(0.0) if isinstance(m, Experience)]
    assert (message.peer, message.seq, message.transitions) == (PEER, 1, 4)
    assert (message.produced, message.env_steps, message.model_version) == (6, 6, 1234)
    np.testing.assert_array_equal(message.rows, [3, 3])
    np.testing.assert_array_equal(message.columns["obs"][1], [[1, 0], [1, 1], [1, 2]])
    np.testing.assert_array_equal(message.columns["action"][1], [7, 7, 7])
    np.testing.assert_array_equal(message.columns["reward"][1], [17, 17, 17])
    np.testing.assert_array_equal(message.columns["flags"][1], [0, 0, 1])

    # 4. The proxy stores the next one, and the ledger has seen both.
    assert buffer.push(message.columns, message.rows) == 4
    proxy.start()
    actor.finish_streams()
    wait_until(lambda: len(buffer) == 6, 10, "the tail to be stored")
    assert proxy.ledger.balance().stored == 2

    # 5. Sampling: the transition that ended an episode bootstraps from nothing.
    assert proxy.wait_may_sample(8, timeout_s=0.0) is False, "only 2 inserts went past the limiter"
    batch = buffer.sample(600)
    rows = {tuple(obs): k for k, obs in enumerate(batch["obs"].tolist())}
    assert set(rows) == {(e, t) for e in (0.0, 1.0) for t in (0.0, 1.0, 2.0)}
    first, last = rows[1.0, 0.0], rows[1.0, 2.0]
    np.testing.assert_array_equal(batch["next_obs"][first], [1, 1])
    np.testing.assert_array_equal(batch["next_obs"][last], [1, 3], "the true final observation")
    assert (batch["discount"][first], batch["discount"][last]) == (0.5, 0.0)
    assert (batch["reward"][first], batch["action"][first]) == (17, 7)

    # 6. The update makes a new model, 7. which the actor takes before its next action.
    assert float(learner.opt(batch)["loss"]) == 1 / 1235
    info = learner.model_info()
    learner_link.publish(info, "act")
    learner.opt(batch)
    actor.run_step()
    assert policy.params["action"] == 8, "a snapshot: the second update is not in it"
    proxy.close()
    interrupter.raise_if_failed()
