"""What agents that learn action values, or distributions of returns per action, have in common.

Such an agent acts on the best value, has a target network, and minimises one loss. Its file defines
network, targets and loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from asyncrl.agents.parts.choosing import REWARD_SCALE, ChooserSpec, ValueChooser
from asyncrl.agents.parts.exploration import EpsilonLadder, Exploration
from asyncrl.agents.parts.inference import Compute, outputs_of, perturbed, steps_of
from asyncrl.agents.parts.networks import (
    MakeNetwork,
    NetworkInput,
    Perturbation,
    observation_reader,
)
from asyncrl.agents.parts.normalize import Normalized, RunningNorm
from asyncrl.agents.parts.optimizers import FusedAdam
from asyncrl.agents.parts.schedules import LearningRate
from asyncrl.agents.parts.torch_agent import TorchConfig, TorchPolicy, flatten_parameters, seeded
from asyncrl.agents.parts.updater import TRANSITION_COLUMNS, TargetNetwork, Updater, UpdatingAgent
from asyncrl.core.agent import PolicyContext
from asyncrl.core.declared import COMMON, Count, Positive, PositiveOrOff, Share, Widths
from asyncrl.core.env import EnvSpec
from asyncrl.core.env_checks import shown
from asyncrl.core.errors import ConfigError
from asyncrl.core.inference import MEMORY, NOISE, OUTPUTS
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.types import Array, Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class QConfig(TorchConfig):
    """Settings that DQN and its descendants share."""

    hidden: Annotated[Widths, COMMON] = (64, 64)
    """Units of each hidden layer. For images, these layers follow the convolutions."""

    double: bool = True
    """Double Q-learning: the online network chooses the next action, the target network provides
    its value."""

    dueling: bool = False
    """Separate streams for the value of a state and the advantages of its actions."""

    noisy: bool = False
    """Noisy layers after the encoder, with learned noise that is resampled for each act and each
    optimisation step. They explore by themselves: `exploration` may be None."""

    noisy_sigma: PositiveOrOff = 0.5
    """Initial noise of noisy layers; it is divided by the square root of the layer's inputs. 0
    starts without noise."""

    learning_rate: Annotated[LearningRate, COMMON] = 2e-3
    """Learning rate of Adam. Only a schedule may reach 0."""

    adam_eps: Positive = 1e-8
    """Adam's epsilon, added to its denominator."""

    max_grad_norm: PositiveOrOff = 10.0
    """Maximum gradient norm. Larger gradients are scaled down to it; 0 disables clipping."""

    tau: Share = 0.05
    """Polyak factor: the share of the online network that enters the target network in each
    optimisation step. 0 copies the whole network every `target_interval_opt_steps`."""

    target_interval_opt_steps: Count = 200
    """Optimisation steps between two copies to the target network. Used only if `tau` is 0."""

    exploration: Exploration | None = field(default_factory=EpsilonLadder)
    """How actors explore in training. None leaves exploration to noisy layers."""

    can_accumulate: ClassVar[bool] = True

    @property
    def sigma(self) -> float | None:
        """Return the initial noise of noisy layers, None if there are none."""
        return self.noisy_sigma if self.noisy else None

    def check_shapes(self, network: MakeNetwork | None) -> None:
        """Raise if settings of the default network are combined with a custom one."""
        for name, part in (("dueling", "DuelingHead"), ("noisy", "NoisyLinear layers")):
            if network is not None and getattr(self, name):
                raise ConfigError(
                    f"agent.{name}=True shapes the default network and has no effect on "
                    f"agent.network; leave it off and build {part} into your network"
                )

    @abstractmethod
    def make_network(self, spec: EnvSpec) -> nn.Module:
        """Return the network, from observations to values (B, actions)."""

    def policy(self, spec: EnvSpec, context: PolicyContext, device: torch.device) -> TorchPolicy:
        """Return a policy with the network on a device."""
        return value_policy(self, spec, context, device)


def value_policy(
    config: QConfig,
    spec: EnvSpec,
    context: PolicyContext,
    device: torch.device,
    *,
    memory_size: int = 0,
    stores_values: bool = False,
) -> TorchPolicy:
    """Return a policy that acts on its network's values (B, actions).

    With a memory, the network has a method `step`. `stores_values` is as in `ValueChooser`.
    """
    with seeded(context.seed):
        network = config.make_network(spec)
    perturbation = Perturbation(network)
    size = perturbation.size
    _check_explores(config.exploration, size)
    model, read = config.with_norms(network, spec.observation), observation_reader(spec.observation)
    compute = steps_of(model, read) if memory_size else None
    if stores_values and isinstance(model, Normalized) and model.returns is not None:
        compute = _with_scale(outputs_of(model, read), model.returns)
    if size:
        compute = perturbed(compute or outputs_of(model, read), perturbation)
    settings = {"noise_size": size, "memory_size": memory_size, "stores_values": stores_values}
    sizes = {NOISE: size, MEMORY: memory_size}
    return TorchPolicy(
        model,
        ChooserSpec(ValueChooser, {"exploration": config.exploration, **settings}),
        spec,
        context,
        device,
        compute=compute,
        inputs=[ColumnSpec(name, "float32", (n,)) for name, n in sizes.items() if n],
    )


def _with_scale(compute: Compute, returns: RunningNorm) -> Compute:
    """Return the same, and the scale of the values of rows."""

    def compute_with_scale(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        answer = compute(inputs)
        return {**answer, REWARD_SCALE: returns.scale().float().expand(len(answer[OUTPUTS]))}

    return compute_with_scale


class QAgent(UpdatingAgent, ABC):
    """The part that learns, and acts as well.

    Hooks:

        loss(obs, next_obs, reward, data)       the loss of a batch; required
        draw(rows)                              random numbers of an update
        columns, inputs(data)                   how to read a batch that has no transitions

    A hook can use `net`, its target network `target`, and `updater(network, ...)`, which passes a
    batch through one of them.
    """

    columns: ClassVar[tuple[str, ...]] = TRANSITION_COLUMNS

    def __init__(
        self, config: QConfig, spec: EnvSpec, context: PolicyContext, device: torch.device
    ) -> None:
        super().__init__(config.policy(spec, context, device))
        self.config = config
        self.perturbation = Perturbation(self.net)
        vectors = [flatten_parameters(self.net)]
        self.optimizer = FusedAdam(vectors, config.learning_rate, config.adam_eps)
        self.target_network = TargetNetwork(self.net, config.tau, flat=vectors)
        self.target = self.target_network.network
        self.target_perturbation = Perturbation(self.target)
        self.parts |= {"target": self.target, "optimizer": self.optimizer}
        self.draws = torch.Generator(device).manual_seed(context.seed)
        """Generator of an update's random numbers; part of the state if the update uses any."""
        if self.perturbation.size:
            self.parts["draws"] = self.draws
        self.copies_every = 0 if config.tau else config.target_interval_opt_steps
        """Optimisation steps between two copies of the network; 0 if it uses Polyak averaging."""
        self.updater = Updater(
            self,
            config,
            {"": self.optimizer},
            max_grad_norm=config.max_grad_norm,
            networks=[self.model],
            columns=self.columns,
        )

    @abstractmethod
    def loss(
        self, obs: NetworkInput, next_obs: NetworkInput, reward: Tensor, data: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch, and numbers to record, without gradients.

        A column `weight` weights the rows. For priorities, the numbers include either `priority` of
        each row, or the value `q` and the `target`, whose distance is the priority. Neither is
        needed unless a replay asks for priorities.
        """

    def inputs(self, data: Mapping[str, Tensor]) -> tuple[NetworkInput, NetworkInput, Tensor]:
        """Return observations, next observations and rewards for networks and losses."""
        return self.updater.inputs(data)

    def draw(self, rows: int) -> dict[str, Tensor]:
        """Return noise, if the network has noisy layers."""
        size = self.perturbation.size
        if not size:
            return {}
        # The same noise for all rows: one for the online network, one for the target network.
        normal = torch.randn((2, 1, size), generator=self.draws, device=self.device)
        return {"noise": self.perturbation.shape(normal)}

    def opt(self, batch: Columns) -> Mapping[str, Tensor]:
        """Take one step towards the targets; return loss, mean value and gradient norm."""
        metrics = super().opt(batch)
        if self.copies_every and self.version % self.copies_every == 0:
            self.target_network.hard_update()
        return metrics

    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Minimise the loss by one step, and update the target network."""
        obs, next_obs, reward = self.inputs(data)
        if self.perturbation.size:
            self.perturbation.set(data["noise"][0])
            self.target_perturbation.set(data["noise"][1])
        answer = self.loss(obs, next_obs, reward, data)
        if not isinstance(answer, tuple):
            raise ConfigError(
                f"`loss` of {type(self).__name__} must return a loss and a dict of numbers, got "
                f"{shown(answer)}; return for instance loss, {{}}"
            )
        loss, metrics = answer
        metrics |= {"loss": loss.detach()} | self.updater.minimize(loss)
        if not self.copies_every:
            self.target_network.soft_update()
        if self.perturbation.size:
            self.perturbation.clear()
            self.target_perturbation.clear()
        return metrics

    def priorities(self) -> Array:
        """Return the priority of each row of the last batch."""
        return self.updater.priorities()


def _check_explores(exploration: Exploration | None, noise_size: int) -> None:
    if exploration is None and not noise_size:
        raise ConfigError(
            "agent.exploration=None leaves exploration to noisy layers, but the network has none; "
            "set agent.noisy=True, or an exploration such as EpsilonLadder"
        )
