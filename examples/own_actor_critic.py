"""A variant of TD3 with learned embeddings of states and actions, as in TD7, for vectors.

Fujimoto et al. (2023), For SALE: state-action representation learning for deep reinforcement
learning, https://arxiv.org/abs/2306.02451. An encoder f of states and a predictor g of the next
state's embedding learn from mean of |g(f(s), a) - f(s')|^2; actor and critics get both embeddings
as further inputs. Everything else is TD3; the paper's checkpoints are left out.

    asyncrl train examples.own_actor_critic:TD7Config --env Pendulum-v1
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from asyncrl import EnvSpec, PolicyContext
from asyncrl.agents.parts.critics import BatchedCritics
from asyncrl.agents.parts.networks import MLP, NetworkInput, pick_device
from asyncrl.agents.parts.optimizers import FastOptimizer, FusedAdam
from asyncrl.agents.td3 import TD3Agent, TD3Config


@dataclass(frozen=True, slots=True, kw_only=True)
class TD7Config(TD3Config):
    """Settings: those of TD3. An embedding is as wide as the last hidden layer."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> TD7Agent:
        """Build the learner's agent."""
        return TD7Agent(self, spec, context, pick_device(self.device))

    def make_actor(self, spec: EnvSpec) -> EmbeddingActor:
        """Return the actor's network."""
        return EmbeddingActor(spec.observation.shape[0], self.n_dimensions(spec), self)


class EmbeddingActor(nn.Module):
    """Maps observations to actions before squashing; actors need its encoder as well."""

    def __init__(self, n_obs: int, n_actions: int, config: TD7Config) -> None:
        super().__init__()
        self.encoder = MLP(n_obs, config.hidden, config.hidden[-1])
        self.head = MLP(n_obs + config.hidden[-1], config.hidden, n_actions)

    def embed(self, obs: NetworkInput) -> Tensor:
        """Return f(s), whose mean magnitude is 1."""
        embedded: Tensor = self.encoder(obs)
        return embedded / embedded.abs().mean(dim=1, keepdim=True).clamp(min=1e-8)

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions before squashing."""
        action: Tensor = self.head(torch.cat([obs, self.embed(obs).detach()], dim=1))
        return action


class TD7Agent(TD3Agent):
    """The learner's agent: TD3's, with one more optimizer and other inputs of critics."""

    actor: EmbeddingActor

    def make_critics(self, spec: EnvSpec) -> nn.Module:
        """Return critics of states, both embeddings and actions; make the predictor g."""
        hidden, n_actions = self.config.hidden, self.bounds.size
        self.predictor = MLP(hidden[-1] + n_actions, hidden, hidden[-1]).to(self.device)
        n_inputs = spec.observation.shape[0] + 2 * hidden[-1] + n_actions
        return BatchedCritics(self.config.n_critics, n_inputs, hidden)

    def equip(self, **optimizers: FastOptimizer) -> None:
        """Set up updates, with an optimizer of encoder and predictor."""
        self.parts["predictor"] = self.predictor
        encoders = [*self.actor.encoder.parameters(), *self.predictor.parameters()]
        super().equip(encoder=FusedAdam(encoders, self.config.critic_learning_rate))

    def values(self, critics: Callable[..., Tensor], obs: NetworkInput, action: Tensor) -> Tensor:
        """Return Q(s, a, f(s), g(f(s), a)), (critics, B)."""
        embedded = self.actor.embed(obs).detach()
        predicted = self.predictor(torch.cat([embedded, action], dim=1))
        whole = torch.cat([obs, embedded, predicted], dim=1)  # type: ignore[list-item]
        return super().values(critics, whole, action)

    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update encoders and critics by one step, and the policy in some of the steps."""
        obs, next_obs, reward = self.updater.inputs(data)
        action = self.scaled(data["action"])
        predicted = self.predictor(torch.cat([self.actor.embed(obs), action], dim=1))
        loss = (predicted - self.actor.embed(next_obs).detach()).square().mean()
        metrics = {"encoder_loss": loss.detach()} | self.updater.minimize(loss, "encoder")
        target = reward + data["discount"] * self.value(next_obs, data["noise"])
        q = self.values(self.critics, obs, action)
        loss, of_critics = self.critic_loss(q, target, data.get("weight"))
        metrics |= of_critics | self.updater.minimize(loss, "critic")
        if "improve_policy" in data:
            loss = -self.values(self.first_critic, obs, self.act_by(self.actor, obs)).mean()
            metrics |= {"actor_loss": loss.detach()} | self.updater.minimize(loss, "actor")
            for network in self.target_networks:
                network.soft_update()
        return metrics
