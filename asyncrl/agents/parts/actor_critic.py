"""What agents with an actor, critics and bounded actions share: settings, acting, updating."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from asyncrl.agents.parts.choosing import Bounds, ChooserSpec
from asyncrl.agents.parts.critics import make_critics
from asyncrl.agents.parts.networks import MakeNetwork, NetworkInput, q_network
from asyncrl.agents.parts.optimizers import FastOptimizer, FusedAdam
from asyncrl.agents.parts.schedules import LearningRate
from asyncrl.agents.parts.torch_agent import TorchConfig, TorchPolicy, learning_parameters, seeded
from asyncrl.agents.parts.updater import Updater, UpdatingAgent
from asyncrl.agents.parts.user_networks import own_network
from asyncrl.core.agent import PolicyContext
from asyncrl.core.declared import COMMON, Count, Natural, PositiveOrOff, Widths
from asyncrl.core.env import EnvSpec
from asyncrl.core.types import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorCriticConfig(TorchConfig):
    """Settings of agents with an actor, critics and bounded actions, whatever their equations."""

    hidden: Annotated[Widths, COMMON] = (256, 256)
    """Units of each hidden layer of the actor and of each critic."""

    n_critics: Count = 2
    """Number of critics. The minimum of their values is used."""

    actor_network: MakeNetwork | None = None
    """Factory of a custom actor. None uses the default one."""

    critic_network: MakeNetwork | None = None
    """Factory of a custom critic, called `n_critics` times: float observations (B, ...), images
    within [0, 1], or a dict of them by field name, and actions (B, action dimensions) scaled to
    [-1, 1] -> (B, 1) or (B,). Must be importable or cloudpickle-able. None uses the default one."""

    actor_learning_rate: Annotated[LearningRate, COMMON] = 3e-4
    """Learning rate of the actor's Adam."""

    critic_learning_rate: Annotated[LearningRate, COMMON] = 1e-3
    """Learning rate of the critics' Adam."""

    random_env_steps: Natural = 1000
    """Initial environment steps of the whole run with uniformly random actions."""

    noise_correlation_env_steps: PositiveOrOff = 0.0
    """Correlation time of the exploration noise, and of random actions, in steps of one
    environment. 0 samples independent noise in each step. Where one step changes little, as in
    MountainCarContinuous, only correlated noise explores."""

    max_grad_norm: PositiveOrOff = 0.0
    """Maximum gradient norm, of the actor and of the critics separately. Larger gradients are
    scaled down to it; 0 disables clipping."""

    opt_steps_per_env_step: ClassVar[float] = 1.0

    @property
    def algorithm(self) -> str:
        """The name that errors give the algorithm."""
        return type(self).__name__.removesuffix("Config")

    def n_dimensions(self, spec: EnvSpec) -> int:
        """Return the number of action dimensions; raise if they are not bounded."""
        return Bounds(spec, self.algorithm).size

    @abstractmethod
    def make_actor(self, spec: EnvSpec) -> nn.Module:
        """Return the actor's network."""

    @abstractmethod
    def chooser_spec(self) -> ChooserSpec:
        """Return what chooses from the actor's outputs; its settings include `bounded`."""

    @property
    def bounded(self) -> dict[str, Any]:
        """Settings that every chooser of bounded actions takes."""
        return {
            "algorithm": self.algorithm,
            "random_env_steps": self.random_env_steps,
            "noise_correlation_env_steps": self.noise_correlation_env_steps,
        }

    def policy(self, spec: EnvSpec, context: PolicyContext, device: torch.device) -> TorchPolicy:
        """Return a policy with the actor network only."""
        with seeded(context.seed):
            actor = self.make_actor(spec)
        model = self.with_norms(actor, spec.observation)
        return TorchPolicy(model, self.chooser_spec(), spec, context, device)


def make_actor(
    spec: EnvSpec, hidden: tuple[int, ...], n_outputs: int, own: MakeNetwork | None
) -> nn.Module:
    """Return the default actor or a custom one, whose output is checked."""
    if own is None:
        return q_network(spec.observation, hidden, n_outputs)
    return own_network("actor_network", own, spec, [(2, n_outputs)])


class ActorCritic(UpdatingAgent):
    """The part that learns, and acts as well. A subclass calls `equip` in its constructor.

    Hooks:

        update(data)        the equations; required
        draw(rows)          the random numbers of an update, from `normal`
        make_critics(spec)  the critics' networks

    The equations can use `actor` and `critics`, which process batches through `values` or
    `updater(network, ...)`; `critic_loss`; `scaled` actions; `updater.minimize(loss, "actor")`.
    """

    switches_modes: ClassVar[bool] = True
    """Whether an update runs with actor and critics in training mode."""

    def __init__(
        self, config: ActorCriticConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config.policy(spec, context, device))
        self.config = config
        self.actor = self.net
        self.bounds = Bounds(spec, config.algorithm)
        with seeded(context.seed + 1):
            self.critics = self.make_critics(spec).to(device).eval()
        # Not of flat vectors: they save less than 1 % of a step with 256 units, 3 % with 64, and
        # other optimizers could not share parameters.
        self.actor_adam = FusedAdam(learning_parameters(self.actor), config.actor_learning_rate)
        self.critic_adam = FusedAdam(learning_parameters(self.critics), config.critic_learning_rate)
        self.noise_generator = torch.Generator(device).manual_seed(context.seed)
        self.center = torch.from_numpy(self.bounds.center).to(device)
        self.half_width = torch.from_numpy(self.bounds.half).to(device)
        self.__yes = torch.zeros(1, device=device)
        self.parts |= {
            "critics": self.critics,
            "actor_adam": self.actor_adam,
            "critic_adam": self.critic_adam,
            "noise": self.noise_generator,
        }

    def make_critics(self, spec: EnvSpec) -> nn.Module:
        """Return the networks of action values."""
        config = self.config
        return make_critics(spec, config.hidden, config.n_critics, config.critic_network)

    def equip(self, **optimizers: FastOptimizer) -> None:
        """Set up updates, with further optimizers by name."""
        config = self.config
        standard = config.actor_network is None and config.critic_network is None
        self.updater = Updater(
            self,
            config,
            {"actor": self.actor_adam, "critic": self.critic_adam, **optimizers},
            max_grad_norm=config.max_grad_norm,
            networks=[self.model, self.critics],
            switch_modes=self.switches_modes,
            hidden=config.hidden if standard else (),
        )
        self.parts |= {f"{name}_adam": optimizer for name, optimizer in optimizers.items()}

    def priorities(self) -> Array:
        """Return each row's absolute TD error in the last batch, averaged over the critics."""
        return self.updater.priorities()

    def normal(self, *shape: int) -> Tensor:
        """Sample from N(0, 1)."""
        return torch.randn(shape, generator=self.noise_generator, device=self.device)

    def policy_turn(self, interval_opt_steps: int) -> dict[str, Tensor]:
        """Return a column whose presence says whether this update improves the policy.

        The columns of a batch distinguish captured and compiled variants of an update.
        """
        turn = self.version % interval_opt_steps == 0
        return {"improve_policy": self.__yes} if turn else {}

    def scaled(self, action: Tensor) -> Tensor:
        """Return a batch's actions as networks see them: (B, size) in [-1, 1]."""
        return (action.float().reshape(len(action), -1) - self.center) / self.half_width

    def values(self, critics: Callable[..., Tensor], obs: NetworkInput, action: Tensor) -> Tensor:
        """Return values (critics, B)."""
        return self.updater(critics, obs, action, dim=1)

    def critic_loss(
        self, q: Tensor, target: Tensor, weight: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of values (critics, B) against targets (B,), and numbers to record."""
        # J_Q = mean of (Q_i(s, a) - y)^2, weighted where sampling was not uniform
        if weight is None:
            loss = mse_loss(q, target.expand_as(q))
        else:
            loss = (weight * (q - target).square()).mean()
        q = q.detach()
        return loss, {"critic_loss": loss.detach(), "q_mean": q.mean(), "q": q, "target": target}
