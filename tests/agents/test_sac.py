"""What SAC adds to the contract of agents: its equations, its bounds, its networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from asyncrl.agents.awac import AWACConfig
from asyncrl.agents.parts.accelerated import pick_matmul
from asyncrl.agents.parts.critics import BatchedCritics
from asyncrl.agents.parts.networks import MLP
from asyncrl.agents.sac import SACAgent, SACConfig, SACPolicy, sample_action
from asyncrl.agents.td3 import TD3Config
from asyncrl.core.agent import PolicyContext, evaluation_mode
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import ModelInfo
from asyncrl.core.types import Array, Columns, ModelVersion
from tests.agents.cloning import LEARNING_RATE
from tests.agents.squashed import arrays_of, check_step, drawn_noise, randomize, sampled, scaled

CONTEXT = PolicyContext(seed=3)
CPU = torch.device("cpu")
LOW, HIGH = [-1.0, 2.0], [5.0, 2.5]


def box(low: list[float], high: list[float], dtype: str = "float32") -> BoxSpec:
    return BoxSpec((len(low),), dtype, np.array(low, dtype), np.array(high, dtype))


def spec_with(
    action: BoxSpec | DiscreteSpec, shape: tuple[int, ...] = (3,), dtype: str = "float32"
) -> EnvSpec:
    return EnvSpec(BoxSpec(shape, dtype, np.zeros(shape), np.ones(shape)), action)


SPEC = spec_with(box(LOW, HIGH))
SMALL = SACConfig(hidden=(16, 16), device="cpu", random_env_steps=0)


def small(**settings: Any) -> SACConfig:
    return SACConfig(**{"hidden": (16, 16), "device": "cpu", "random_env_steps": 0} | settings)


def observations(n: int = 64, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32)


def batch_of(n: int = 32, **columns: Array) -> Columns:
    random = np.random.default_rng(n)
    batch = {
        "obs": observations(n, 1),
        "next_obs": observations(n, 2),
        "action": random.uniform(LOW, HIGH, (n, 2)).astype(np.float32),
        "reward": random.normal(size=n).astype(np.float32),
        "discount": np.full(n, 0.9, np.float32),
    }
    return batch | columns


class ConstantActor(nn.Module):
    """Standard normal before squashing, whatever it sees."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.output = nn.Parameter(torch.zeros(2 * math.prod(spec.action.shape)))

    def forward(self, obs: Tensor) -> Tensor:
        return self.output.expand(len(obs), -1)


class ConstantCritic(nn.Module):
    """The same value for everything, which it can learn."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.value + 0.0 * action.sum(dim=1, keepdim=True)


def constant_agent(*values: float, **settings: Any) -> SACAgent:
    """Build an agent whose critics and target networks have these values."""
    config = small(
        actor_network=ConstantActor,
        critic_network=ConstantCritic,
        n_critics=len(values),
        **settings,
    )
    agent = config.build(spec_with(box([-1.0], [1.0])), CONTEXT)
    for critics in (agent.critics, agent.targets):
        for parameter, value in zip(critics.parameters(), values, strict=True):
            nn.init.constant_(parameter, value)
    return agent


# --- the policy's density ------------------------------------------------------------------------


def test_log_prob_is_that_of_the_squashed_gaussian() -> None:
    generator = torch.Generator().manual_seed(0)
    output = 0.4 * torch.randn(500, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(500, 2, generator=generator, dtype=torch.float64)
    action, log_prob = sample_action(output, noise)
    mean, log_std = output.chunk(2, dim=1)
    squashed = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform())
    torch.testing.assert_close(action, torch.tanh(mean + log_std.exp() * noise))
    torch.testing.assert_close(log_prob, squashed.log_prob(action).sum(dim=1))


def test_density_of_one_action_adds_up_to_one() -> None:
    noise = torch.linspace(-9, 9, 20_001, dtype=torch.float64)[:, None]
    output = torch.tensor([[0.4, -0.3]], dtype=torch.float64).expand(len(noise), -1)
    action, log_prob = sample_action(output, noise)
    assert torch.trapezoid(log_prob.exp(), action[:, 0]).item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("mean", [-40.0, -12.0, 12.0, 40.0])
def test_log_prob_and_its_gradient_are_exact_where_tanh_is_flat(mean: float) -> None:
    output = torch.tensor([[mean, 0.0]], requires_grad=True)
    _, log_prob = sample_action(output, torch.zeros(1, 1))
    # log(1 - tanh^2 u) = log 4 - 2 |u| for large |u|
    expected = -0.5 * math.log(2 * math.pi) - (math.log(4.0) - 2.0 * abs(mean))
    assert log_prob.item() == pytest.approx(expected, rel=1e-6)
    log_prob.backward()
    assert output.grad is not None
    assert output.grad[0, 0].item() == pytest.approx(math.copysign(2.0, mean), rel=1e-5)


@pytest.mark.parametrize(("log_std", "clamped"), [(-100.0, -5.0), (100.0, 2.0)])
def test_standard_deviation_is_clamped(log_std: float, clamped: float) -> None:
    noise = torch.tensor([[0.1]])
    wild = sample_action(torch.tensor([[0.0, log_std]]), noise)
    tame = sample_action(torch.tensor([[0.0, clamped]]), noise)
    torch.testing.assert_close(wild, tame)


# --- acting --------------------------------------------------------------------------------------


def policy_that_outputs(*numbers: float, spec: EnvSpec = SPEC) -> SACPolicy:
    policy = small(actor_network=ConstantActor).build_policy(spec, CONTEXT)
    with torch.no_grad():
        next(policy.model.parameters()).copy_(torch.tensor(numbers))
    return policy


def test_mean_action_lies_where_the_bounds_put_it() -> None:
    # atanh(0.5) = 0.5493: three quarters of the way from low to high
    policy = policy_that_outputs(0.5493061, -0.5493061, 0.0, 0.0).train(False)
    action = policy.act(observations(4)).action
    np.testing.assert_allclose(action, [[3.5, 2.125]] * 4, rtol=1e-6)


@pytest.mark.parametrize(("mean", "bound"), [(-50.0, LOW), (50.0, HIGH)])
def test_saturated_actions_are_the_bounds_and_not_beyond(mean: float, bound: list[float]) -> None:
    policy = policy_that_outputs(mean, mean, 0.0, 0.0).train(False)
    assert policy.act(observations(1)).action.tolist() == [bound]


def test_rounding_never_leaves_uneven_bounds() -> None:
    odd = box([-0.1, 1e-3], [0.7, 1e3])
    for mean in (-50.0, 50.0):
        policy = policy_that_outputs(mean, mean, 0.0, 0.0, spec=spec_with(odd)).train(False)
        action = policy.act(observations(1)).action[0]
        assert ((action >= odd.low) & (action <= odd.high)).all()


def test_sampled_actions_spread_as_the_actor_says() -> None:
    policy = policy_that_outputs(0.3, 0.0, math.log(0.5), -5.0)
    action = policy.act(observations(20_000)).action
    u = np.arctanh((action.astype(np.float64) - [2.0, 2.25]) / [3.0, 0.25])
    np.testing.assert_allclose(u.mean(axis=0), [0.3, 0.0], atol=0.02)
    np.testing.assert_allclose(u.std(axis=0), [0.5, math.exp(-5.0)], rtol=0.03)


def test_first_steps_are_uniform_between_the_bounds() -> None:
    policy = small(random_env_steps=20_000).build_policy(SPEC, CONTEXT)
    action = policy.act(observations(20_000)).action
    assert ((action >= LOW) & (action <= HIGH)).all()
    for column, low, high in zip(action.T, LOW, HIGH, strict=True):
        shares, _ = np.histogram(column, bins=10, range=(low, high))
        np.testing.assert_allclose(shares / len(action), 0.1, atol=0.01)


def test_random_steps_end_after_as_many_as_were_asked_for() -> None:
    policy = small(random_env_steps=10, actor_network=ConstantActor).build_policy(SPEC, CONTEXT)
    nn.init.constant_(next(policy.model.parameters()), -50.0)
    at_the_bound = [bool((policy.act(observations(4)).action == LOW).all()) for _ in range(4)]
    assert at_the_bound == [False, False, False, True]


def test_steps_of_the_whole_run_count_and_evaluation_does_not() -> None:
    policy = small(random_env_steps=10, actor_network=ConstantActor).build_policy(SPEC, CONTEXT)
    nn.init.constant_(next(policy.model.parameters()), -50.0)
    with evaluation_mode(policy):
        for _ in range(20):
            assert (policy.act(observations(4)).action == LOW).all()
    assert not (policy.act(observations(4)).action == LOW).all()
    params = policy.model_info().params
    policy.sync_model(ModelInfo(version=ModelVersion(1), params=params, env_steps=10))
    assert (policy.act(observations(4)).action == LOW).all()


# --- learning ------------------------------------------------------------------------------------


def test_critics_learn_the_reward_and_the_least_of_the_slow_values() -> None:
    agent = constant_agent(1.0, 3.0, alpha=0.0)
    rewards, discounts = np.array([1, 2], np.float32), np.array([0.9, 0.0], np.float32)
    action = np.zeros((2, 1), np.float32)
    record = agent.opt(batch_of(2, action=action, reward=rewards, discount=discounts))
    # y = (1 + 0.9 * 1, 2 + 0 * 1): the second transition ended its episode
    expected = ((1 - 1.9) ** 2 + (1 - 2) ** 2 + (3 - 1.9) ** 2 + (3 - 2) ** 2) / 4
    assert record["critic_loss"].item() == pytest.approx(expected, rel=1e-6)
    assert record["q_mean"].item() == 2.0


@pytest.mark.parametrize("values", [(2.0,), (4.0, 2.0), (3.0, 2.0, 5.0, 9.0)])
def test_any_number_of_critics(values: tuple[float, ...]) -> None:
    agent = constant_agent(*values, alpha=0.0)
    zeros = np.zeros(4, np.float32)
    ones = np.ones(4, np.float32)
    batch = batch_of(4, action=zeros[:, None], reward=zeros, discount=ones)
    record = agent.opt(batch)
    expected = np.mean([(value - 2.0) ** 2 for value in values])
    assert record["critic_loss"].item() == pytest.approx(expected, abs=1e-6)
    assert record["actor_loss"].item() == pytest.approx(-2.0, abs=0.01)


def test_value_of_the_next_observation_holds_the_entropy() -> None:
    n, alpha = 40_000, 0.5
    agent = constant_agent(0.0, 0.0, alpha=alpha)
    zeros, ones = np.zeros(n, np.float32), np.ones(n, np.float32)
    record = agent.opt(batch_of(n, action=zeros[:, None], reward=ones, discount=ones))
    # With Q = 0 and r = 1 the target is 1 - alpha log pi(a); a = tanh u, u standard normal.
    u = np.linspace(-8, 8, 4001)
    density = np.exp(-0.5 * u**2) / math.sqrt(2 * math.pi)
    log_prob = np.log(density) - np.log(1 - np.tanh(u) ** 2)
    mean_square = np.trapezoid(density * (1 - alpha * log_prob) ** 2, u)
    entropy = -np.trapezoid(density * log_prob, u)
    assert record["critic_loss"].item() == pytest.approx(mean_square, rel=0.02)
    assert record["entropy"].item() == pytest.approx(entropy, abs=0.02)


# --- against the paper's equations, one row after another ----------------------------------------


class NaiveSAC:
    """The equations, of parameters that are given: MLPs of one hidden layer."""

    def __init__(self, agent: SACAgent, batch: Columns, alpha: float) -> None:
        self.batch = {name: column.astype(np.float64) for name, column in batch.items()}
        self.rows, self.alpha = len(batch["obs"]), alpha
        self.noise = drawn_noise(CONTEXT.seed, self.rows, 2)
        self.actor = arrays_of(agent.model)
        self.critics, self.targets = arrays_of(agent.critics), arrays_of(agent.targets)

    def drawn(self, actor: list[Array], obs: Array, noise: Array) -> tuple[Array, float]:
        weight, bias, out_weight, out_bias = actor
        return sampled(out_weight @ np.maximum(weight @ obs + bias, 0.0) + out_bias, noise)

    def values(self, critics: list[Array], obs: Array, unit: Array) -> list[float]:
        x = np.concatenate([obs, unit])
        weights, out_weights, biases, out_biases = critics
        hidden = [np.maximum(x @ w + b[0], 0.0) for w, b in zip(weights, biases, strict=True)]
        outs = zip(hidden, out_weights, out_biases, strict=True)
        return [float((h @ w + b[0])[0]) for h, w, b in outs]

    def targets_of_rows(self) -> list[float]:
        targets = []
        for i in range(self.rows):
            obs = self.batch["next_obs"][i]
            action, log_prob = self.drawn(self.actor, obs, self.noise[0, i])
            value = min(self.values(self.targets, obs, action)) - self.alpha * log_prob
            targets.append(self.batch["reward"][i] + self.batch["discount"][i] * value)
        return targets

    def critic_loss(self, critics: list[Array]) -> float:
        total, count = 0.0, 0
        for i, y in enumerate(self.targets_of_rows()):
            unit = scaled(self.batch["action"][i], LOW, HIGH)
            for q in self.values(critics, self.batch["obs"][i], unit):
                total += self.batch["weight"][i] * (q - y) ** 2
                count += 1
        return total / count

    def log_probs(self, actor: list[Array]) -> list[float]:
        obs = self.batch["obs"]
        return [self.drawn(actor, obs[i], self.noise[1, i])[1] for i in range(self.rows)]

    def actor_loss(self, actor: list[Array], critics: list[Array]) -> float:
        total = 0.0
        for i in range(self.rows):
            obs = self.batch["obs"][i]
            action, log_prob = self.drawn(actor, obs, self.noise[1, i])
            total += self.alpha * log_prob - min(self.values(critics, obs, action))
        return total / self.rows

    def alpha_loss(self, log_alpha: float, target_entropy: float) -> float:
        terms = [log_alpha * (log_prob + target_entropy) for log_prob in self.log_probs(self.actor)]
        return -sum(terms) / self.rows


@pytest.mark.parametrize("target_entropy", [-2.0, 5.0])
def test_step_is_that_of_the_papers_equations(target_entropy: float) -> None:
    rates = ("actor_learning_rate", "critic_learning_rate", "alpha_learning_rate")
    agent = small(
        hidden=(5,),
        initial_alpha=0.3,
        target_entropy=target_entropy,
        **dict.fromkeys(rates, LEARNING_RATE),
    ).build(SPEC, CONTEXT)
    for seed, network in enumerate((agent.model, agent.critics, agent.targets)):
        randomize(network, seed)
    discount = np.array([0.9, 0.0, 0.9, 0.81, 0.9, 0.9], np.float32)
    batch = batch_of(6, discount=discount, weight=np.linspace(0.2, 1.0, 6, dtype=np.float32))
    naive = NaiveSAC(agent, batch, alpha=0.3)
    metrics = {name: float(value) for name, value in agent.opt(batch).items()}

    assert metrics["critic_loss"] == pytest.approx(naive.critic_loss(naive.critics), rel=1e-4)
    check_step(naive.critics, arrays_of(agent.critics), naive.critic_loss)
    # The policy climbs the critics as they are by then.
    critics = arrays_of(agent.critics)
    assert metrics["actor_loss"] == pytest.approx(naive.actor_loss(naive.actor, critics), rel=1e-4)
    check_step(naive.actor, arrays_of(agent.model), lambda a: naive.actor_loss(a, critics))
    assert metrics["entropy"] == pytest.approx(-np.mean(naive.log_probs(naive.actor)), rel=1e-4)
    at, width = math.log(0.3), 1e-3
    ahead, behind = (naive.alpha_loss(at + x, target_entropy) for x in (width, -width))
    log_alpha = float(agent.state()["log_alpha/value"])
    assert log_alpha - at == pytest.approx(-LEARNING_RATE * np.sign(ahead - behind), rel=1e-2)
    for slow, old, new in zip(arrays_of(agent.targets), naive.targets, critics, strict=True):
        np.testing.assert_allclose(slow, 0.995 * old + 0.005 * new, rtol=1e-4, atol=1e-6)


def test_opt_reports_tensors_by_name() -> None:
    record = SMALL.build(SPEC, CONTEXT).opt(batch_of())
    names = {"critic_loss", "actor_loss", "alpha", "entropy", "q_mean"}
    names |= {"critic_grad_norm", "actor_grad_norm"}
    rates = {"actor_learning_rate", "critic_learning_rate"}
    assert set(record) == names | rates
    tensors = [record[name] for name in names]
    assert all(isinstance(value, Tensor) and not value.requires_grad for value in tensors)


@pytest.mark.parametrize(("target_entropy", "sign"), [(50.0, 1), (-50.0, -1)])
def test_alpha_follows_the_target_entropy(target_entropy: float, sign: int) -> None:
    config = small(target_entropy=target_entropy, initial_alpha=0.5, alpha_learning_rate=0.01)
    agent = config.build(SPEC, CONTEXT)
    alphas = [agent.opt(batch_of())["alpha"].item() for _ in range(3)]
    # Adam's first steps are as long as its learning rate.
    expected = [0.5 * math.exp(sign * 0.01 * k) for k in range(3)]
    assert alphas == pytest.approx(expected, rel=1e-4)


def test_target_entropy_is_minus_the_action_dimensions() -> None:
    # Uniform on [-1, 1]: log 2 for each dimension. Narrow: far below -1 for each.
    for log_std, sign in ((0.0, -1), (-5.0, 1)):
        agent = small(actor_network=ConstantActor).build(SPEC, CONTEXT)
        with torch.no_grad():
            next(agent.model.parameters()).copy_(torch.tensor([0.0, 0.0, log_std, log_std]))
        entropy = agent.opt(batch_of())["entropy"].item()
        assert (entropy > -2.0) is (sign < 0)
        alpha = agent.opt(batch_of())["alpha"].item()
        assert (alpha - 1.0) * sign > 0


def test_fixed_alpha_stays() -> None:
    agent = small(alpha=0.2, target_entropy=50.0).build(SPEC, CONTEXT)
    assert [agent.opt(batch_of())["alpha"].item() for _ in range(3)] == pytest.approx([0.2] * 3)


def test_target_critics_take_buffers_too() -> None:
    agent = small(critic_network=NormalizingCritic).build(SPEC, CONTEXT)
    agent.opt(batch_of())
    for slow, fast in zip(agent.targets.buffers(), agent.critics.buffers(), strict=True):
        assert torch.equal(slow, fast)


def test_loss_of_the_actor_leaves_no_gradient_in_the_critics() -> None:
    agent = SMALL.build(SPEC, CONTEXT)
    before = [p.clone() for p in agent.model.parameters()]
    obs = torch.from_numpy(observations())
    action, log_prob = agent.sample(obs, torch.zeros(len(obs), 2))
    least = agent.values(agent.critics, obs, action).amin(dim=0)
    agent.updater.minimize((0.1 * log_prob - least).mean(), "actor")
    assert all(p.grad is None for p in agent.critics.parameters())
    assert all(not torch.equal(p, q) for p, q in zip(before, agent.model.parameters(), strict=True))


# --- networks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_critics", [1, 2, 5])
@pytest.mark.parametrize("hidden", [(), (7,), (16, 8)])
def test_batched_critics_are_separate_networks_computed_together(
    n_critics: int, hidden: tuple[int, ...]
) -> None:
    batched = BatchedCritics(n_critics, 5, hidden)
    networks = [MLP(5, hidden, 1) for _ in range(n_critics)]
    for i, network in enumerate(networks):
        linears = [layer for layer in network if isinstance(layer, nn.Linear)]
        for k, linear in enumerate(linears):
            linear.weight.data = batched.weights[k].data[i].T.clone()
            linear.bias.data = batched.biases[k].data[i, 0].clone()
    obs, action = torch.randn(32, 3), torch.randn(32, 2)
    values = batched(obs, action)
    separate = torch.stack([n(torch.cat([obs, action], 1)).squeeze(1) for n in networks])
    torch.testing.assert_close(values, separate)
    values.square().sum().backward()
    separate.square().sum().backward()
    for i, network in enumerate(networks):
        first = next(network.parameters())
        gradient = batched.weights[0].grad
        assert gradient is not None
        torch.testing.assert_close(gradient[i].T, first.grad, rtol=1e-4, atol=1e-5)


class OwnActor(nn.Module):
    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(spec.observation.shape[0], 8), nn.Tanh())
        self.head = nn.Linear(8, 2 * spec.action.shape[0])

    def forward(self, obs: Tensor) -> Tensor:
        out: Tensor = self.head(self.net(obs))
        return out


class OwnCritic(nn.Module):
    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.net = nn.Linear(spec.observation.shape[0] + spec.action.shape[0], 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        assert action.abs().max() <= 1.0
        out: Tensor = self.net(torch.cat([obs, action], 1))
        return out


class FlatCritic(OwnCritic):
    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return super().forward(obs, action).squeeze(1)


class NormalizingCritic(OwnCritic):
    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self.net = nn.Sequential(nn.BatchNorm1d(5), self.net)


STILL = batch_of(discount=np.zeros(32, np.float32))
"""A batch with constant targets, which critics must learn."""


@pytest.mark.parametrize("critic", [OwnCritic, FlatCritic, NormalizingCritic])
def test_own_networks_learn_and_travel(critic: Callable[[EnvSpec], nn.Module]) -> None:
    config = small(actor_network=OwnActor, critic_network=critic, n_critics=3)
    agent, policy = config.build(SPEC, CONTEXT), config.build_policy(SPEC, CONTEXT)
    first = next(agent.critics.parameters()).clone()
    losses = [agent.opt(STILL)["critic_loss"].item() for _ in range(50)]
    assert losses[-1] < losses[0]
    assert not torch.equal(next(agent.critics.parameters()), first)
    assert len({net.net for net in agent.critics.critics}) == 3
    policy.sync_model(agent.model_info())
    assert set(policy.model_info().params) == set(OwnActor(SPEC).state_dict())


class LazyCritic(OwnCritic):
    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self.net = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(1))


def test_critics_may_find_out_how_many_inputs_they_have() -> None:
    agent = small(critic_network=LazyCritic, n_critics=3).build(SPEC, CONTEXT)
    losses = [agent.opt(STILL)["critic_loss"].item() for _ in range(50)]
    assert losses[-1] < losses[0]


def make_normalizing_actor(_: EnvSpec) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4))


def test_own_networks_learn_nothing_from_being_checked() -> None:
    config = small(actor_network=make_normalizing_actor, critic_network=NormalizingCritic)
    agent = config.build(SPEC, CONTEXT)
    norms = [m for n in (agent.model, agent.critics) for m in n.modules() if m._buffers]
    assert len(norms) == 3
    for norm in norms:
        assert norm.num_batches_tracked == 0


@pytest.mark.parametrize("width", [16, 256])
def test_matrices_are_multiplied_in_float32(width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn((2, 256, width), generator=generator)[:, :width]
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    with pick_matmul(CPU, hidden=(width,))():
        product = x @ w
    # bfloat16 would be wrong by about 0.1
    torch.testing.assert_close(product.double(), x.double() @ w.double(), rtol=0, atol=1e-4)
    with pytest.raises(KeyError), pick_matmul(CPU, hidden=(width,))():
        raise KeyError
    assert settings.fp32_precision == before


class LargeCritic(OwnCritic):
    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self.net = nn.Sequential(nn.Linear(5, 26_215), nn.Linear(26_215, 1))


@pytest.mark.usefixtures("amd")
@pytest.mark.parametrize("build", [SACConfig, TD3Config, AWACConfig])
def test_large_custom_critics_are_multiplied_by_onednn(build: Callable[..., Any]) -> None:
    onednn, none = pick_matmul(CPU, hidden=(128,)), pick_matmul(CPU)
    for critic, expected in ((LargeCritic, onednn), (OwnCritic, none)):
        config = build(hidden=(8,), critic_network=critic, device="cpu")
        assert config.build(SPEC, CONTEXT).updater._matmul is expected


# --- what cannot work ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (DiscreteSpec(4), "4 discrete ones; use DQN, or give another --env"),
        (box([-np.inf], [1.0]), "must be finite"),
        (box([0.0], [0.0]), "different"),
        (box([-3e38], [3e38]), "must be finite"),
        (box([0], [10], "int32"), "float dtype"),
    ],
)
def test_actions_that_sac_cannot_choose_are_refused(
    action: BoxSpec | DiscreteSpec, message: str
) -> None:
    for make in (SMALL.build, SMALL.build_policy):
        with pytest.raises(ConfigError, match=message):
            make(spec_with(action), CONTEXT)


@pytest.mark.gpu
def test_learns_on_a_gpu() -> None:
    agent = small(device="cuda").build(SPEC, CONTEXT)
    record = agent.opt(batch_of())
    assert all(value.device.type == "cuda" for value in record.values())
    assert agent.act(observations(4)).action.shape == (4, 2)
    again = small(device="cuda").build(SPEC, CONTEXT)
    again.load_state(agent.state())
    assert agent.opt(batch_of())["critic_loss"] == again.opt(batch_of())["critic_loss"]
