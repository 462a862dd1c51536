"""R2D2: recurrent double DQN, for partially observable environments.

Paper: Kapturowski et al. (2019), Recurrent Experience Replay in Distributed Reinforcement Learning,
https://openreview.net/forum?id=r1lyTjAqYX

    observations ── encoder ── memory ── dueling head ── a value for each action

It learns from sequences, see `replay/sequences.py`. Each one begins with the memory that the policy
had there when it acted (the stored state). The learning network has changed since, and so would its
memory; therefore the first `burn_in` rows only update the memory, without gradients. With action
values Q, target network Q', and s', which lies n steps ahead, or where the episode was truncated:

    y_t   = h(r_t + discount_t * h^-1(Q'(s', a*)))     h: `rescale`, below
    a*    = argmax over a of Q(s', a), or of Q'(s', a) where `double` is off
    L     = mean over all transitions of (Q(s_t, a_t) - y_t)^2
    p     = eta * max over t of |Q(s_t, a_t) - y_t| + (1 - eta) * mean over t of the same

p is a sequence's priority, eta is `priority_of_largest`.

Deviations, on purpose:

* The network sees observations only, not the previous action and reward; use a wrapper to add them
  to the observations where they help.
* The target network follows by Polyak averaging (tau) unless it is set to be copied at intervals.
* The loss is the mean over all rows that are transitions, so that the short sequences at the ends
  of episodes do not count more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from asyncrl.agents.parts.choosing import CoreKind, memory_size
from asyncrl.agents.parts.networks import (
    MakeNetwork,
    NetworkInput,
    allowed_only,
    each_field,
    encoder_layers,
    hidden_layers,
    n_actions,
    n_features,
    pick_device,
    q_head,
)
from asyncrl.agents.parts.q_learning import QAgent, QConfig, value_policy
from asyncrl.agents.parts.recurrent import RecurrentCore, each_row
from asyncrl.agents.parts.torch_agent import TorchPolicy
from asyncrl.agents.parts.user_networks import own_encoder
from asyncrl.core.agent import BatchKind, PolicyContext
from asyncrl.core.declared import COMMON, Count, Natural, Share, Widths
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.inference import MEMORY
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.types import Columns

_COLUMNS = ("obs", "action", "reward", "discount", "bootstrap", "mask", "weight", MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class R2D2Config(QConfig):
    """Settings of R2D2. It needs a sequence replay."""

    hidden: Annotated[Widths, COMMON] = (64,)
    """Units of each hidden layer between the memory and the values."""

    encoder_hidden: Widths = (64,)
    """Units of each layer between an observation, or its convolutions, and the memory."""

    network: MakeNetwork | None = None
    """Factory of a custom encoder in place of the default one: from a batch of float observations
    (images within [0, 1]), or a dict of them by field name, to (batch, any number of features).
    Must be importable or cloudpickle-able."""

    memory: CoreKind = "lstm"
    """Recurrent layer: `lstm` learns from sequences in two thirds of the time on a CPU; the state
    of `gru` is half as large."""

    memory_units: Count = 64
    """Units of the recurrent layer."""

    dueling: bool = True
    """Separate streams for the value of a state and the advantages of its actions."""

    burn_in: Natural = 0
    """Rows at the start of a sequence that only warm up the memory; must equal `replay.burn_in`."""

    rescale_values: bool = True
    """Learn h(Q) = sign(Q) (sqrt(|Q| + 1) - 1) + a small multiple of Q, which compresses large
    values. Games with scores of any size then learn with the same settings."""

    priority_of_largest: Share = 0.9
    """Weight of the maximum TD error in the priority of a sequence; the mean has the rest."""

    learns_from: ClassVar[BatchKind] = "sequences"

    def build(self, spec: EnvSpec, context: PolicyContext) -> R2D2Agent:
        """Return the learner's agent."""
        return R2D2Agent(self, spec, context, pick_device(self.device))

    @property
    def memory_size(self) -> int:
        """Numbers that the memory of an environment has."""
        return memory_size(self.memory, self.memory_units)

    def policy(self, spec: EnvSpec, context: PolicyContext, device: torch.device) -> TorchPolicy:
        """Return a policy with a memory of each environment's episode."""
        return value_policy(self, spec, context, device, memory_size=self.memory_size)

    def make_network(self, spec: EnvSpec) -> RecurrentQNet:
        """Return encoder, memory and head."""
        n = n_actions(spec, "R2D2")
        encoder, width = _make_encoder(spec, self.encoder_hidden, self.network)
        core = RecurrentCore(self.memory, width, self.memory_units)
        head = q_head(core.n_outputs, self.hidden, n, dueling=self.dueling, sigma=self.sigma)
        return RecurrentQNet(encoder, core, head)

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Return the columns of the memory, and of normalisation if it is on."""
        memory = ColumnSpec(MEMORY, "float32", (self.memory_size,), start=True)
        return (memory, *self.norm_columns)


class RecurrentQNet(nn.Module):
    """Values of all actions, given observations and a memory of earlier ones.

    `step` takes rows (B, ...) one by one, the others sequences (B, T, ...).
    """

    def __init__(self, encoder: nn.Module, core: RecurrentCore, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.core = core
        self.head = head

    def step(self, obs: NetworkInput, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (B, actions), and the memory after these rows."""
        out, memory = self.core.step(self.encoder(obs), memory)
        return allowed_only(self.head(out), obs), memory

    def remember(self, obs: NetworkInput, memory: Tensor) -> Tensor:
        """Return the memory after these sequences."""
        return self.core.unroll(each_row(self.encoder, obs), memory)[1]

    def unroll(self, obs: NetworkInput, memory: Tensor) -> Tensor:
        """Return values (B, T, actions), not masked: a replay may have a forbidden action."""
        q: Tensor = self.head(self.core.unroll(each_row(self.encoder, obs), memory)[0])
        return q


class R2D2Agent(QAgent):
    """The part that learns, and acts as well."""

    config: R2D2Config
    net: RecurrentQNet
    target: RecurrentQNet
    columns = _COLUMNS

    def opt(self, batch: Columns) -> Mapping[str, Tensor]:
        """Take one step towards the targets; return loss, mean value and gradient norm."""
        _check_batch(batch, self.config.burn_in)
        return super().opt(batch)

    def inputs(self, data: Mapping[str, Tensor]) -> tuple[NetworkInput, NetworkInput, Tensor]:
        """Return observations (B, T + n, ...), the same again, and rewards (B, T).

        Next observations are among the observations.
        """
        obs, reward = self.updater.trajectories(data)
        return obs, obs, reward

    def loss(
        self, obs: NetworkInput, next_obs: NetworkInput, reward: Tensor, data: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        learned = slice(self.config.burn_in, None)
        mask, action = data["mask"][:, learned], data["action"][:, learned]
        all_q = self.unroll(self.net, obs, data)
        target = self.targets(all_q.detach(), obs, reward, data)
        # After the rows with actions come those that are only for bootstrapping.
        q = all_q[:, : action.shape[1]].gather(2, action[:, :, None]).squeeze(2)
        error = torch.where(mask, q - target, 0.0)
        n_rows = mask.sum(dim=1).clamp(min=1)
        self.updater.rows = n_rows.sum()
        squares = error.square().sum(dim=1)
        loss = (data["weight"] * squares if "weight" in data else squares).sum() / n_rows.sum()
        size, eta = error.detach().abs(), self.config.priority_of_largest
        priority = eta * size.amax(dim=1) + (1.0 - eta) * size.sum(dim=1) / n_rows
        q_mean = torch.where(mask, q.detach(), 0.0).sum() / n_rows.sum()
        return loss, {"q_mean": q_mean, "priority": priority}

    @torch.no_grad()
    def targets(
        self, all_q: Tensor, obs: NetworkInput, reward: Tensor, data: Mapping[str, Tensor]
    ) -> Tensor:
        """Return y_t of each row learned from."""
        burn_in, learned = self.config.burn_in, slice(self.config.burn_in, None)
        slow_q = self.unroll(self.target, obs, data)
        choosing = allowed_only(all_q if self.config.double else slow_q, _rows(obs, learned))
        best = choosing.argmax(dim=2, keepdim=True)
        value = (
            slow_q.gather(2, best).squeeze(2).gather(1, data["bootstrap"][:, burn_in:] - burn_in)
        )
        if not self.config.rescale_values:
            return reward[:, burn_in:] + data["discount"][:, burn_in:] * value
        return rescale(reward[:, burn_in:] + data["discount"][:, burn_in:] * undo_rescale(value))

    def unroll(
        self, network: RecurrentQNet, obs: NetworkInput, data: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the values (B, rows after burn-in, actions) of sequences."""
        burn_in, memory = self.config.burn_in, data[MEMORY]
        if burn_in:
            with torch.no_grad():
                warm = self.updater(network.remember, _rows(obs, slice(burn_in)), memory)
            # A sequence that begins an episode needs no burn-in; its initial memory is empty.
            memory = torch.where(data["mask"][:, burn_in - 1, None], warm, memory)
        return self.updater(network.unroll, _rows(obs, slice(burn_in, None)), memory)


def _rows(obs: NetworkInput, which: slice) -> NetworkInput:
    return each_field(obs, lambda field: field[:, which])


def _make_encoder(
    spec: EnvSpec, hidden: tuple[int, ...], own: MakeNetwork | None
) -> tuple[nn.Module, int]:
    """Return the default or a custom encoder, and its number of features."""
    if own is not None:
        return own_encoder(own, spec)
    layers = encoder_layers(spec.observation)
    if hidden:
        width = n_features(layers, spec.observation)
        layers.append(hidden_layers(width, hidden))
    return nn.Sequential(*layers), n_features(layers, spec.observation)


def _check_batch(batch: Columns, burn_in: int) -> None:
    """Raise if the batch comes from another kind of replay, or one with other settings."""
    if "bootstrap" not in batch:
        raise ConfigError(
            "R2D2 learns from sequences, but this batch has no column bootstrap; use "
            "SequenceReplayConfig or PrioritizedSequenceReplayConfig as replay"
        )
    if MEMORY not in batch or batch[MEMORY].ndim != 2:
        raise ConfigError(
            "R2D2 needs the memory at the first row of each sequence, but this batch has "
            f"{batch[MEMORY].shape if MEMORY in batch else 'none'}; set replay.start_columns to "
            f'("{MEMORY}",)'
        )
    mask = batch["mask"]
    # There is no burn-in where an episode begins, so that number of rows is empty there.
    empty = mask[~mask[:, 0]].argmax(axis=1)
    if mask.shape[1] <= burn_in or (empty != burn_in).any():
        raise ConfigError(
            f"agent.burn_in={burn_in} and replay.burn_in differ: in sequences of {mask.shape[1]} "
            f"rows, {empty.max(initial=0)} are empty where an episode begins; set both to the same "
            "value"
        )


def rescale(value: Tensor, eps: float = 1e-3) -> Tensor:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, which compresses large values."""
    return value.sign() * ((value.abs() + 1.0).sqrt() - 1.0) + eps * value


def undo_rescale(value: Tensor, eps: float = 1e-3) -> Tensor:
    """Return the inverse of `rescale`."""
    # The paper's (sqrt(1 + 4 eps y) - 1) / (2 eps), y = |x| + 1 + eps, loses half of the digits of
    # a float32 if eps is small; this is the same number.
    y = value.abs() + 1.0 + eps
    root = 2.0 * y / ((1.0 + 4.0 * eps * y).sqrt() + 1.0)
    return value.sign() * (root.square() - 1.0)
