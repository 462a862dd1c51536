"""What DQN and SAC have in common on the way from a batch to new parameters."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Literal

import numpy as np
import pytest
import torch

from asyncrl.agents.dqn import DQNAgent, DQNConfig
from asyncrl.agents.parts.updater import _CACHED_BYTES, _out_of_memory
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.sac import SACAgent, SACConfig
from asyncrl.core.agent import PolicyContext, evaluation_mode
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.errors import ConfigError, OutOfMemory
from asyncrl.core.types import Columns
from asyncrl.testing import check_agent

CONTEXT = PolicyContext(seed=4, n_envs=6)
BOX = BoxSpec((3,), "float32", np.full(3, -1, np.float32), np.full(3, 1, np.float32))
ROWS = 32

Config = DQNConfig | SACConfig
DQN = DQNConfig(hidden=(16, 16), device="cpu")
SAC = SACConfig(hidden=(16, 16), device="cpu", random_env_steps=0)
both = pytest.mark.parametrize("config", [DQN, SAC], ids=["dqn", "sac"])


def spec_for(config: Config) -> EnvSpec:
    return EnvSpec(BOX, DiscreteSpec(2) if isinstance(config, DQNConfig) else BOX)


def build(config: Config, **changes: Any) -> DQNAgent | SACAgent:
    return dataclasses.replace(config, **changes).build(spec_for(config), CONTEXT)


def batch_for(config: Config, seed: int = 0, rows: int = ROWS) -> Columns:
    random = np.random.default_rng(seed)
    discrete = isinstance(config, DQNConfig)
    return {
        "obs": random.normal(5.0, 3.0, (rows, 3)).astype(np.float32),
        "next_obs": random.normal(5.0, 3.0, (rows, 3)).astype(np.float32),
        "action": random.integers(2, size=rows)
        if discrete
        else random.uniform(-1, 1, (rows, 3)).astype(np.float32),
        "reward": random.normal(size=rows).astype(np.float32),
        "discount": np.where(random.random(rows) < 0.1, 0.0, 0.99).astype(np.float32),
        "discounted_return": random.normal(0.0, 20.0, rows).astype(np.float32),
    }


@both
def test_priorities_are_the_errors_of_the_newest_batch(config: Config) -> None:
    agent = build(config)
    with pytest.raises(ValueError, match="there was none yet"):
        agent.priorities()
    for seed, rows in enumerate([ROWS, 7]):
        batch = batch_for(config, seed, rows)
        batch["discount"][:] = 0.0  # the target is the reward
        critics = copy.deepcopy(agent.model if isinstance(agent, DQNAgent) else agent.critics)
        agent.opt(batch)
        with torch.no_grad():
            obs, action = torch.from_numpy(batch["obs"]), torch.from_numpy(batch["action"])
            if isinstance(agent, DQNAgent):
                q = critics(obs).gather(1, action[:, None]).T.numpy()
            else:
                q = critics(obs, action).numpy()
        errors = np.abs(q - batch["reward"]).mean(axis=0)
        assert agent.priorities() == pytest.approx(errors, rel=1e-4, abs=1e-5)
        assert agent.priorities().dtype == np.float32


class Telling(DQNAgent):
    """Returns what a test gives it, in place of a loss."""

    alone = False
    answer: Any = None

    def loss(self, *args: Any) -> Any:
        loss, metrics = super().loss(*args)
        return loss if self.alone else (loss, metrics)

    def update(self, data: dict[str, torch.Tensor]) -> Any:
        metrics = super().update(data)
        return metrics if self.alone else self.answer


class TellingConfig(DQNConfig):
    """Makes agents that return nothing but their loss."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> Telling:
        agent = Telling(self, spec, context, torch.device("cpu"))
        agent.answer = {}
        return agent


def telling(**metrics: Any) -> Telling:
    agent = TellingConfig(hidden=(16,), device="cpu").build(spec_for(DQN), CONTEXT)
    for name, value in metrics.items():
        setattr(agent, name, value)
    return agent


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"answer": None}, "`update` of Telling must return tensors by name, got None"),
        ({"answer": torch.tensor(0.5)}, "must return tensors by name, got 0.5"),
        ({"answer": {"q": torch.zeros(ROWS)}}, "`update` of Telling returned `q` without `target`"),
        (
            {"alone": True},
            r"`loss` of Telling must return a loss and a dict of numbers, got [\d.]+;",
        ),
    ],
)
def test_updates_that_report_something_else_are_named(metrics: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        telling(**metrics).opt(batch_for(DQN))


def test_an_update_may_report_no_priorities() -> None:
    agent = telling(answer={"priority": torch.ones(ROWS)})
    agent.opt(batch_for(DQN))
    assert np.array_equal(agent.priorities(), np.ones(ROWS))
    agent.answer = {"my_loss": torch.tensor(0.5)}
    assert agent.opt(batch_for(DQN))["my_loss"] == 0.5
    with pytest.raises(ConfigError, match="returned neither `priority` nor `q` and `target`"):
        agent.priorities()
    check_agent(TellingConfig(hidden=(16,), device="cpu"), spec_for(DQN))


@both
def test_actors_normalize_as_the_learner_does(config: Config) -> None:
    agent = build(config, normalize_obs=True, normalize_reward=True)
    changed = dataclasses.replace(config, normalize_obs=True, normalize_reward=True)
    policy = changed.build_policy(spec_for(config), CONTEXT)
    obs = batch_for(config, 50, rows=6)["obs"]
    for seed in range(20):
        agent.opt(batch_for(config, seed))
    with evaluation_mode(agent), evaluation_mode(policy):
        policy.sync_model(agent.model_info())
        assert np.array_equal(policy.act(obs).action, agent.act(obs).action)
    info = policy.model_info().params
    all_rows = np.concatenate([batch_for(config, seed)["obs"] for seed in range(20)])
    assert info["fields.0.mean"] == pytest.approx(all_rows.mean(axis=0, dtype=np.float64))
    assert info["fields.0.var"] == pytest.approx(all_rows.var(axis=0, dtype=np.float64))
    assert info["returns.var"].item() == pytest.approx(400.0, rel=0.2)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("normalize", [False, True])
def test_images_of_trajectories_are_read_in_the_precision_of_products(
    precision: Literal["float32", "bfloat16"], normalize: bool
) -> None:
    image = BoxSpec((2, 100, 100), "uint8", np.zeros((2, 100, 100)), np.full((2, 100, 100), 255))
    config = PPOConfig(device="cpu", precision=precision, normalize_obs=normalize)
    agent = config.build(EnvSpec(image, DiscreteSpec(2)), CONTEXT)
    stored = torch.randint(256, (3, 9, *image.shape), dtype=torch.uint8)
    assert stored.nbytes > 2 * _CACHED_BYTES
    mask = torch.ones(3, 8, dtype=torch.bool)
    mask[1, 4] = False
    data = {"obs": stored, "mask": mask, "reward": torch.zeros(3, 8)}
    obs, _ = agent.updater.trajectories(data)
    expected = stored / 255.0
    if normalize:
        acted_on = expected[:, :-1][mask]
        expected = (expected - acted_on.mean(dim=0)) / acted_on.std(dim=0, correction=0)
    assert isinstance(obs, torch.Tensor)
    assert obs.dtype == getattr(torch, precision)
    assert torch.allclose(obs.float(), expected, atol=1e-5 if precision == "float32" else 0.02)


@both
def test_networks_learn_from_what_is_normalized(config: Config) -> None:
    """Units of observations and rewards do not matter once there are statistics of them."""
    plain = build(config, normalize_obs=True, normalize_reward=True)
    scaled = build(config, normalize_obs=True, normalize_reward=True)
    for seed in range(5):
        batch = batch_for(config, seed)
        plain.opt(batch)
        for name in ("obs", "next_obs"):
            batch[name] = batch[name] * 100.0 - 7.0
        for name in ("reward", "discounted_return"):
            batch[name] = batch[name] * 1000.0
        scaled.opt(batch)
    network = {name for name in plain.model_info().params if name.startswith("network.")}
    ours, theirs = scaled.model_info().params, plain.model_info().params
    for name in network:
        assert ours[name] == pytest.approx(theirs[name], abs=1e-4)


@both
def test_rewards_without_returns_cannot_be_normalized(config: Config) -> None:
    batch = batch_for(config)
    del batch["discounted_return"]
    agent = build(config, normalize_reward=True)
    with pytest.raises(ConfigError, match="column discounted_return"):
        agent.opt(batch)
    assert agent.version == 0


@pytest.mark.fault("F34")
@both
def test_device_without_memory_ends_in_a_sentence_and_the_agent_can_still_be_saved(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = build(config)
    agent.opt(batch_for(config))
    before = agent.state()

    def full(_: object) -> dict[str, torch.Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory. TrialRecord to allocate 20.00 GiB")

    monkeypatch.setattr(agent.updater, "_run", full)
    with pytest.raises(OutOfMemory, match=rf"batch of {ROWS} rows.*trainer.batch_size") as raised:
        agent.opt(batch_for(config, 1))
    assert "20.00 GiB" in str(raised.value.__cause__)
    after = agent.state()
    assert after["version"] == before["version"]
    assert all(np.array_equal(after[name], before[name]) for name in before if "noise" not in name)


@pytest.mark.fault("F34")
def test_free_gpu_memory_is_reported_after_its_cache_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own calls are stood in for, so this needs none."""
    free_bytes = [1 << 30]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free_bytes.append(3 << 30))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_bytes[-1], 80 << 30))
    batch = {"obs": np.zeros((512, 1 << 9), np.float32)}
    said = str(_out_of_memory(batch, torch.device("cuda", 0)))
    for words in ("cuda:0", "batch of 512 rows", "3.00 of 80.00 GiB", "reduce trainer.batch_size"):
        assert words in said
