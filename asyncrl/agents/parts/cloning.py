"""What BC, AWAC and IQL share: a policy that imitates the actions of a batch.

For continuous actions the policy is a Gaussian whose actions are clipped, not squashed: data sets
contain many actions at a bound, and their density must be finite.
"""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.agents.parts.actor_critic import make_actor
from asyncrl.agents.parts.choosing import (
    CategoricalSampler,
    ChooserSpec,
    GaussianSampler,
    SamplingChooser,
    make_sampler,
)
from asyncrl.agents.parts.critics import make_action_values
from asyncrl.agents.parts.distributions import ActionHead, CategoricalHead, GaussianHead
from asyncrl.agents.parts.exploration import FORBIDDEN
from asyncrl.agents.parts.inference import outputs_of
from asyncrl.agents.parts.networks import (
    MakeNetwork,
    NetworkInput,
    allowed_only,
    observation_reader,
)
from asyncrl.agents.parts.optimizers import FusedAdam
from asyncrl.agents.parts.schedules import Rate
from asyncrl.agents.parts.torch_agent import TorchConfig, TorchPolicy, flatten_parameters, seeded
from asyncrl.agents.parts.updater import TargetNetwork, Updater, UpdatingAgent
from asyncrl.core.agent import PolicyContext
from asyncrl.core.declared import COMMON, Count, Finite, Positive, PositiveOrOff, Widths, Within
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.types import Array

_LOG_STD_MIN, _LOG_STD_MAX = -5.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CloningConfig(TorchConfig):
    """Settings of the policy."""

    hidden: Annotated[Widths, COMMON] = (256, 256)
    """Units of each hidden layer of every network. For images, these layers follow the
    convolutions."""

    actor_network: MakeNetwork | None = None
    """Factory of a custom actor: float observations (B, ...), images within [0, 1], or a dict of
    them by field name -> (B, choices) logits for discrete actions, or (B, action dimensions) means
    for continuous ones, in units in which the bounds are -1 and 1; twice as many outputs with
    `state_std`. Must be importable or cloudpickle-able. None uses the default one."""

    state_std: bool = False
    """Continuous actions: the actor network also outputs log standard deviations, after the means.
    Off learns standard deviations that are the same in all states. No effect for discrete
    actions."""

    initial_log_std: Finite = 0.0
    """Initial log standard deviation. No effect for discrete actions."""

    learning_rate: Annotated[Rate, COMMON] = 3e-4
    """Learning rate of Adam, for all networks. A schedule counts environment steps, in offline
    training optimisation steps."""

    max_grad_norm: PositiveOrOff = 0.0
    """Maximum gradient norm, of the policy and of each other network separately. Larger gradients
    are scaled down to it; 0 disables clipping."""

    can_accumulate: ClassVar[bool] = True

    def policy(self, spec: EnvSpec, context: PolicyContext, device: torch.device) -> TorchPolicy:
        """Return a policy that samples in training, and takes the most likely action otherwise."""
        with seeded(context.seed):
            actor = _make_actor(spec, self)
        model, read = self.with_norms(actor, spec.observation), observation_reader(spec.observation)
        compute = outputs_of(model, read, actor.head.complete)
        return TorchPolicy(
            model, ChooserSpec(SamplingChooser), spec, context, device, compute=compute
        )


class UnitGaussianHead(GaussianHead):
    """Gaussians in units in which an action's bounds are -1 and 1, for tensors of actions."""

    center: Tensor
    half_width: Tensor
    low: Tensor
    high: Tensor

    def __init__(
        self, sampler: GaussianSampler, *, state_std: bool, initial_log_std: float
    ) -> None:
        super().__init__(sampler, state_std=state_std, initial_log_std=initial_log_std)
        center, half = sampler.center, sampler.half
        low, high = ((bound - center) / half for bound in (sampler.low, sampler.high))
        bounds = {"center": center, "half_width": half, "low": low, "high": high}
        for name, value in bounds.items():
            tensor = torch.from_numpy(np.asarray(value, np.float32))
            self.register_buffer(name, tensor, persistent=False)

    def units(self, action: Tensor) -> Tensor:
        """Return actions (B, *shape) of the environment in the head's units, (B, dimensions)."""
        return (action.float().reshape(len(action), -1) - self.center) / self.half_width

    def draw(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Return clipped actions from standard normal noise, in the head's units."""
        mean, log_std = self._split(outputs)
        return torch.addcmul(mean, log_std.exp(), noise).clamp(self.low, self.high)

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        # Data of a deterministic policy would let standard deviations vanish, and the loss diverge.
        mean, log_std = super()._split(outputs)
        return mean, log_std.clamp(_LOG_STD_MIN, _LOG_STD_MAX)


class Actor(nn.Module):
    """A network and the head that turns its outputs into actions."""

    def __init__(self, network: nn.Module, head: ActionHead) -> None:
        super().__init__()
        self.network = network
        self.head = head

    def forward(self, obs: NetworkInput) -> Tensor:
        """Return the network's outputs."""
        return allowed_only(self.network(obs), obs)


class CloningAgent(UpdatingAgent, ABC):
    """The part that learns, and acts as well. A subclass calls `equip` in its constructor.

    Hooks:

        update(data)    the equations; required
        draw(rows)      the random numbers of an update

    The equations can use `outputs` of the actor, actions as `drawn`, their `log_prob`, `values` of
    critics, and `updater.minimize(loss)`, one step of all networks.
    """

    def __init__(
        self, config: CloningConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config.policy(spec, context, device))
        self.config = config
        self.actor = cast(Actor, self.net)
        self.head = self.actor.head

    def equip(self, **others: nn.Module) -> None:
        """Set up what learning needs; `others` are networks that learn beside the actor."""
        config, networks = self.config, {"actor": self.actor, **others}
        vectors = {name: [flatten_parameters(one)] for name, one in networks.items()}
        flat = [vector for of_one in vectors.values() for vector in of_one]
        self.optimizer = FusedAdam(flat, config.learning_rate)
        self.updater = Updater(
            self,
            config,
            {"": self.optimizer},
            max_grad_norm=config.max_grad_norm,
            norms=vectors if others else None,
            networks=[self.model, *others.values()],
            hidden=config.hidden,
        )
        self.parts |= {"optimizer": self.optimizer}

    def drawn(self, action: Tensor) -> Tensor:
        """Return a batch's actions in the units of the head and the critics."""
        return self.head.units(action) if isinstance(self.head, UnitGaussianHead) else action

    def outputs(self, obs: NetworkInput) -> Tensor:
        """Return the outputs of the actor network."""
        outputs: Tensor = self.updater(self.actor, obs)
        return outputs

    def values(self, critics: nn.Module, obs: NetworkInput, action: Tensor) -> Tensor:
        """Return values (critics, B)."""
        values: Tensor = self.updater(critics, obs, action, dim=1)
        return values

    def log_prob(self, outputs: Tensor, drawn: Tensor) -> Tensor:
        """Return log pi(a|s) of a batch's actions; 0 where a mask forbids the action.

        Such an action, as of a person who knew no mask, cannot be imitated.
        """
        log_prob = self.head.log_prob(outputs, drawn)
        if isinstance(self.head, CategoricalHead):
            log_prob = log_prob.masked_fill(log_prob < FORBIDDEN / 2, 0.0)
        return log_prob


def exp_weights(advantage: Tensor, temperature: float, largest: float) -> Tensor:
    """Return min(exp(A / temperature), largest)."""
    return (advantage / temperature).clamp(max=math.log(largest)).exp()


def weighted_mean(losses: Tensor, weight: Tensor | None) -> Tensor:
    """Return the mean, weighted where sampling was not uniform."""
    return losses.mean() if weight is None else (weight * losses).mean()


def _make_actor(spec: EnvSpec, config: CloningConfig) -> Actor:
    head = _make_head(spec.action, config)
    network = make_actor(spec, config.hidden, head.n_outputs, config.actor_network)
    return Actor(network, head)


def _make_head(action: BoxSpec | DiscreteSpec, config: CloningConfig) -> ActionHead:
    sampler = make_sampler(action)
    if isinstance(sampler, CategoricalSampler):
        return CategoricalHead(sampler)
    return UnitGaussianHead(
        sampler, state_std=config.state_std, initial_log_std=config.initial_log_std
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedCloningConfig(CloningConfig):
    """Settings of critics, and of their influence."""

    n_critics: Count = 2
    """Number of critics. The minimum of their values is used."""

    critic_network: MakeNetwork | None = None
    """Factory of a custom critic, called `n_critics` times. Discrete actions: observations -> (B,
    choices). Continuous actions: observations and actions (B, dimensions), in units in which the
    bounds are -1 and 1 -> (B, 1) or (B,). None uses the default one."""

    max_weight: Positive = 100.0
    """Maximum weight of an action in the cloning loss, relative to the average action."""

    tau: Annotated[float, Within("(0, 1]")] = 0.005
    """Polyak factor of the target networks: the share of the critics that enters them in each
    optimisation step."""

    opt_steps_per_env_step: ClassVar[float] = 1.0


class WeightedCloningAgent(CloningAgent, ABC):
    """A cloning agent with critics, their target networks, and perhaps further networks.

    Hooks, besides those of `CloningAgent`:

        make_others(spec)   networks that learn beside actor and critics, by name
    """

    config: WeightedCloningConfig

    def __init__(
        self,
        config: WeightedCloningConfig,
        spec: EnvSpec,
        context: PolicyContext,
        device: torch.device,
    ) -> None:
        super().__init__(config, spec, context, device)
        who = type(config).__name__.removesuffix("Config")
        settings = config.hidden, config.n_critics, config.critic_network
        with seeded(context.seed + 1):
            self.critics = make_action_values(spec, *settings, who).to(device)
            others = {name: one.to(device) for name, one in self.make_others(spec).items()}
        self.target_network = TargetNetwork(self.critics, config.tau)
        self.targets = self.target_network.network
        self.equip(critic=self.critics, **others)
        self.parts |= {"critics": self.critics, "targets": self.targets, **others}

    def make_others(self, spec: EnvSpec) -> dict[str, nn.Module]:
        """Return further networks: none."""
        return {}

    def priorities(self) -> Array:
        """Return each row's absolute TD error in the last batch, averaged over the critics."""
        return self.updater.priorities()
