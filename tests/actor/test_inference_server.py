"""Served inference within one thread: one model a batch, each actor its own rows, same bits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.actor.acting_model import NoAnswer, ServedModel
from asyncrl.actor.batcher import Batcher
from asyncrl.actor.inference_server import InferenceServer, check_served, place, served
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.parts.choosing import Chooser, ChooserSpec
from asyncrl.agents.parts.torch_agent import TorchPolicy
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import Act, Agent, AgentConfig, PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.inference import InferenceAnswer, InferenceRequest, ServingConfig
from asyncrl.core.messages import ModelInfo, Peer
from asyncrl.core.replay_buffer import ReplayBufferConfig
from asyncrl.core.segment import SegmentConfig
from asyncrl.core.types import Array, ModelVersion
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.stop_conditions import MaxEnvSteps
from asyncrl.replay.sequences import SequenceReplayConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import train_sync
from tests.support.fakes import COUNTING_SPEC, ConstantAgent, NoProgress
from tests.support.helpers import same
from tests.support.sample_messages import make_peer

OBS = BoxSpec((3,), "float32", np.full(3, -9, "f4"), np.full(3, 9, "f4"))
SPEC = EnvSpec(OBS, DiscreteSpec(4))


@dataclass
class Site:
    """A server, its learner and its connections; a client that waits lets the server run."""

    policy: Any
    info: Callable[[], ModelInfo]
    serving: ServingConfig = field(default_factory=lambda: ServingConfig(min_batch=1))
    inbox: list[InferenceRequest] = field(default_factory=list)
    outbox: dict[Peer, deque[InferenceAnswer]] = field(default_factory=dict)
    clock: Callable[[], float] = lambda: 0.0

    def __post_init__(self) -> None:
        parts: Any = self
        self.server = InferenceServer(self.policy, parts, parts, Batcher(self.serving, self.clock))

    def latest_model(self, topic: str, newer_than: int, timeout_s: float) -> ModelInfo | None:
        info = self.info()
        return info if info.version > newer_than else None

    def receive(self, timeout_s: float) -> list[InferenceRequest]:
        received, self.inbox = self.inbox, []
        return received

    def answer(self, peer: Peer, answer: InferenceAnswer) -> None:
        if peer in self.outbox:
            self.outbox[peer].append(answer)

    def turns(self, count: int = 3) -> None:
        for _ in range(count):
            self.server.run_turn(NoProgress())

    def client(self, actor_id: int = 0) -> Client:
        peer = make_peer(actor_id)
        self.outbox[peer] = deque()
        return Client(self, peer)


@dataclass
class Client:
    site: Site
    peer: Peer
    sent: list[int] = field(default_factory=list)
    lost: int = 0
    """Requests to lose from now on."""

    def send(self, request: InferenceRequest) -> None:
        self.sent.append(request.number)
        if self.lost:
            self.lost -= 1
        else:
            self.site.inbox.append(request)

    def receive(self, timeout_s: float) -> InferenceAnswer | None:
        self.site.turns()
        answers = self.site.outbox[self.peer]
        return answers.popleft() if answers else None

    def close(self) -> None: ...


def policy(seed: int = 1) -> Any:
    return DQNConfig(hidden=(8,)).build_policy(SPEC, PolicyContext(seed=seed))


def observations(rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32)


def ask(client: Client, number: int, rows: int) -> None:
    obs = observations(rows, seed=int(client.peer.actor_id))
    client.send(InferenceRequest(peer=client.peer, number=number, inputs={"obs": obs}))


def served_by(client: Client, acting: Any, finishing: Callable[[], bool] = bool) -> ServedModel:
    """Return what replaces a policy's inference; its waits take 0.6 s each."""
    ticks = iter(np.arange(0.0, 100.0, 0.6))
    return ServedModel(
        acting,
        client,
        client.peer,
        progress=NoProgress(),
        finishing=finishing,
        clock=lambda: next(ticks),
    )


def test_one_model_computes_a_batch_and_each_actor_gets_its_own_rows() -> None:
    teacher, newest = policy(seed=2), [1]

    def info() -> ModelInfo:
        return replace(teacher.model_info(), version=ModelVersion(newest[0]), env_steps=40)

    site = Site(policy(), info, ServingConfig(min_batch=5))
    clients = [site.client(0), site.client(1)]
    site.turns()
    ask(clients[0], 1, rows=2)
    site.turns()
    assert not site.outbox[clients[0].peer], "too few rows"
    newest[0] = 2  # published while the first request waits
    ask(clients[1], 1, rows=3)
    site.turns()
    for client, rows in zip(clients, (2, 3), strict=True):
        (answer,) = site.outbox[client.peer]
        assert (answer.number, answer.version, answer.env_steps) == (1, 2, 40)
        obs = observations(rows, seed=int(client.peer.actor_id))
        expected = teacher.inference({"obs": obs})["outputs"]
        np.testing.assert_allclose(answer.outputs["outputs"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"noise": np.zeros((1, 3), np.float32)}, r"lacks \['obs'\]"),
        ({"obs": np.zeros((1, 3), np.float64)}, "obs as float64"),
        ({"obs": np.zeros((1, 4), np.float32)}, "expected rows of"),
        ({"obs": np.zeros((), np.float32)}, "without rows"),
        ({"obs": np.zeros((1, 3), np.float32), "x": np.zeros(1)}, "x as float64"),
    ],
)
def test_wrong_request_fails_its_actor_and_no_other(inputs: Any, words: str) -> None:
    site = Site(policy(), lambda: replace(policy().model_info(), version=ModelVersion(1)))
    with pytest.raises(ConfigError, match=words):
        served_by(site.client(0), policy())(inputs)
    assert served_by(site.client(1), policy())({"obs": observations(1)})["outputs"].shape == (1, 4)


def test_a_lost_request_is_repeated_under_its_number_and_old_answers_are_ignored() -> None:
    site = Site(policy(), lambda: replace(policy().model_info(), version=ModelVersion(3)))
    client = site.client()
    model = served_by(client, policy())
    client.lost = 1
    site.outbox[client.peer].append(
        InferenceAnswer(number=9, version=ModelVersion(8), env_steps=0, outputs={})
    )
    outputs = model({"obs": observations(2)})["outputs"]
    assert outputs.shape == (2, 4)
    assert outputs.flags.writeable
    assert set(client.sent) == {1}
    assert len(client.sent) == 2
    assert model.version == 3


def test_a_wait_for_a_server_that_does_not_answer_ends_with_the_run() -> None:
    site = Site(policy(), lambda: replace(policy().model_info(), version=ModelVersion(-1)))
    waits = iter([False, False, True])
    with pytest.raises(NoAnswer):
        served_by(site.client(), policy(), finishing=lambda: next(waits))({"obs": observations(1)})


def test_version_and_steps_of_the_run_are_asked_for_when_acts_need_no_network() -> None:
    version = [4]

    def info() -> ModelInfo:
        info = policy().model_info()
        return replace(info, version=ModelVersion(version[0]), env_steps=100 * version[0])

    acting = policy()
    client = Site(policy(), info).client()
    model = served_by(client, acting)
    model.sync()
    assert (model.version, acting.env_steps) == (4, 400)
    version[0] = 5
    model({"obs": observations(1)})
    model.sync()
    assert len(client.sent) == 2, "the act brought the version"
    version[0] = 6
    model.sync()
    assert (model.version, acting.env_steps) == (6, 600)


class IgnoresInference(Chooser):
    def act(self, obs: Array) -> Act:
        return Act(np.zeros(len(obs), np.int64))


def test_policies_that_no_server_can_compute_are_refused() -> None:
    with pytest.raises(ConfigError, match="ConstantAgent computes its network within `act`"):
        check_served(ConstantAgent(), COUNTING_SPEC)
    chooser, context = ChooserSpec(IgnoresInference), PolicyContext(seed=0)
    ignores = TorchPolicy(policy().model, chooser, SPEC, context)
    with pytest.raises(ConfigError, match="TorchPolicy does not use its `inference`"):
        check_served(ignores, SPEC)
    check_served(policy(), SPEC)


class Kept:
    """Builds the agent of another config, whose network a server may compute."""

    def __init__(self, config: Any, *, is_served: bool) -> None:
        self.config, self.is_served = config, is_served

    def build(self, spec: EnvSpec, context: PolicyContext) -> Agent:
        self.agent = agent = self.config.build(spec, context)
        if not self.is_served:
            return agent
        versions = iter(range(10**9))
        # Each turn of the server loads the learner's parameters, as they are then.
        server = served(self.config.build_policy(spec, replace(context, seed=99)))
        site = Site(
            server, lambda: replace(agent.model_info(), version=ModelVersion(next(versions)))
        )
        agent.policy.inference = served_by(site.client(), agent)
        return agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self.config, name)


@pytest.mark.parametrize(
    ("config", "env", "replay"),
    [
        (
            SACConfig(hidden=(8,), random_env_steps=20, device="cpu"),
            "Pendulum-v1",
            UniformReplayConfig(capacity=400),
        ),
        (
            R2D2Config(hidden=(8,), memory_units=4, burn_in=2, device="cpu"),
            "CartPole-v1",
            SequenceReplayConfig(capacity=400, sequence_length=4, burn_in=2, stride=2),
        ),
    ],
)
def test_a_synchronous_run_is_the_same_bits_with_served_inference(
    config: AgentConfig, env: str, replay: ReplayBufferConfig
) -> None:
    segment = SegmentConfig(length=8)
    settings = RunConfig(
        trainer=AsyncTrainerConfig(batch_size=4),
        limiter=RateLimiterConfig(min_size=40),
        segment=segment,
        evaluate=EvaluationConfig(where="off"),
        replay=replay,
    )
    states = []
    for is_served in (False, True):
        kept: Any = Kept(config, is_served=is_served)
        train_sync(kept, EnvConfig(id=env, n_envs=2).build, settings, stop=MaxEnvSteps(80))
        states.append(kept.agent.state())
    assert same(*states)


@pytest.mark.behaviour(number=35)
def test_the_server_computes_elsewhere_than_the_learner() -> None:
    learner, moved = policy(), policy()
    place(moved, "cpu")
    inputs = {"obs": observations(2)}
    assert same(moved.inference(inputs), learner.inference(inputs))
    place(moved, "meta")  # a device that every machine has, which computes shapes only
    assert moved.inference.device.type == "meta"
    assert {parameter.device.type for parameter in moved.model.parameters()} == {"meta"}
    assert {parameter.device.type for parameter in learner.model.parameters()} == {"cpu"}


@pytest.mark.behaviour(number=35)
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"serving\.device must be auto, cpu, cuda or cuda:N"):
        place(policy(), "tpu-9")
    elsewhere = policy()
    elsewhere.inference = lambda inputs: inputs
    with pytest.raises(ConfigError, match="function has no method `compute_on"):
        place(elsewhere, "cuda")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"serving\.device is 'cuda', but torch"):
            place(policy(), "cuda")
