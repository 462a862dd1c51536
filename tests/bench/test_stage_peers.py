"""A peer stands in the place of the limit. Stable-Baselines3 itself is not installed for tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.bench import stage_peers
from asyncrl.bench.load import Load
from asyncrl.bench.measure import Rounds
from asyncrl.bench.stage_peers import PEER_STAGES, BenchPeer, PeerWork, peer_stages
from asyncrl.bench.stages import STAGES
from asyncrl.bench.workload import Workload
from asyncrl.core.env import BoxSpec

asked: list[Load] = []


def a_turn(load: Load) -> object:
    asked.append(load)
    return lambda: 10


A_PEER = BenchPeer(
    module="numpy",
    package="numpy",
    title="A peer",
    stages={"learner": PeerWork(make=a_turn, words="what it does")},  # type: ignore[arg-type]
)


@pytest.fixture(scope="module")
def load() -> Load:
    workload = Workload(
        envs_per_actor=2, seconds=0.02, warm_up_seconds=0.0, capacity=1000, batch_size=8
    )
    return Load.of(workload)


def test_a_peer_that_is_installed_takes_the_place_of_the_limit(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_peers, "PEERS", (A_PEER, replace(A_PEER, module="no_such_module")))
    (stage,) = peer_stages("learner", load)
    rounds = Rounds(stage, seconds=0.02, machine={})
    rounds.run(1, lambda _number, _what: None)
    (result,) = rounds.results()
    assert result.case.startswith("beside A peer ")
    assert (result.limit_is, result.unit) == ("what it does", "opt steps/s")
    assert result.limit > result.value > 0, "a peer that does nothing is faster"
    agent = asked[-1].agent
    assert isinstance(agent, DQNConfig)
    assert (agent.double, agent.tau, agent.loss) == (False, 0.0, "huber")
    assert list(peer_stages("sample", load)) == [], "it does not sample"


def test_nothing_is_measured_beside_images(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_peers, "PEERS", (A_PEER,))
    observation = load.spec.observation
    assert isinstance(observation, BoxSpec)
    image = replace(load.spec, observation=replace(observation, shape=(3, 8, 8)))
    assert list(peer_stages("learner", replace(load, spec=image))) == []


def test_peers_have_stages_that_are_measured() -> None:
    assert set(PEER_STAGES) <= set(STAGES)
    assert all(set(peer.stages) <= set(PEER_STAGES) for peer in stage_peers.PEERS)
