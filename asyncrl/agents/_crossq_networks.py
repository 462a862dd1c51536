"""Networks whose inputs and hidden layers are normalised by what passes through them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from asyncrl.agents._critics import EncodedCritics, SeparateCritics
from asyncrl.agents._heads import Headed
from asyncrl.agents.networks import NetworkInput, encoder_layers, n_features
from asyncrl.core.env import BoxSpec, PackedSpec

_EPSILON = 1e-3
_MOMENTUM = 0.01
_R_MAX, _D_MAX = 3.0, 5.0


class BatchRenorm(nn.Module):
    """Normalises features (B, n) by those of their batch, at first, and later by running ones.

    Ioffe 2017, Batch Renormalization, https://arxiv.org/abs/1702.03275. In training mode the batch
    is normalised by its own mean and deviation, as in batch normalisation; after `warmup_batches`,
    the result is then moved and scaled to what the running ones give, within limits. In evaluation
    mode the running ones are used.
    """

    mean: Tensor
    var: Tensor
    batches: Tensor

    def __init__(self, n_features: int, warmup_batches: int = 100_000) -> None:
        super().__init__()
        self.warmup_batches = warmup_batches
        self.weight, self.bias = (
            nn.Parameter(torch.ones(n_features)),
            nn.Parameter(torch.zeros(n_features)),
        )
        self.register_buffer("mean", torch.zeros(n_features))
        self.register_buffer("var", torch.ones(n_features))
        self.register_buffer("batches", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return features (B, n) of about the same size each."""
        x = x.float()
        weight, bias = self.weight, self.bias
        if not self.training:
            return batch_norm(x, self.mean, self.var, weight, bias, training=False, eps=_EPSILON)
        # (x - mean_B) / std_B, and the two: they cost a tenth of what var_mean takes on a CPU
        x, mean, inverse_std = torch.native_batch_norm(
            x, None, None, None, None, training=True, momentum=0.0, eps=_EPSILON
        )
        r, d = self._corrections(mean.detach(), inverse_std.detach())
        return torch.addcmul(bias + weight * d, x, weight * r)

    @torch.no_grad()
    def _corrections(self, mean: Tensor, inverse_std: Tensor) -> tuple[Tensor, Tensor]:
        """Return what a normalised batch is multiplied by and moved by, neither learnt through."""
        # r = std_B / std, d = (mean_B - mean) / std, within limits
        running = (self.var + _EPSILON).rsqrt()
        warm = self.batches >= self.warmup_batches
        r = (running / inverse_std).clamp_(1.0 / _R_MAX, _R_MAX)
        d = ((mean - self.mean) * running).clamp_(-_D_MAX, _D_MAX)
        r, d = torch.where(warm, r, 1.0), torch.where(warm, d, 0.0)
        self.mean.lerp_(mean, _MOMENTUM)
        self.var.lerp_(inverse_std.pow(-2.0) - _EPSILON, _MOMENTUM)
        self.batches.add_(1)
        return r, d


class RenormedCritic(nn.Module):
    """One critic, behind whatever encodes observations."""

    def __init__(self, n_inputs: int, hidden: Sequence[int], warmup_batches: int) -> None:
        super().__init__()
        self.layers = Headed(*_layers(n_inputs, hidden, 1, warmup_batches))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the values (B, 1) of actions scaled to [-1, 1]."""
        value: Tensor = self.layers(torch.cat([obs, action], dim=1))
        return value


def renormed_actor(
    observation: BoxSpec | PackedSpec, hidden: Sequence[int], n_outputs: int, warmup_batches: int
) -> nn.Module:
    """Make an actor for any observations."""
    layers = encoder_layers(observation)
    n_inputs = n_features(layers, observation)
    return Headed(*layers, *_layers(n_inputs, hidden, n_outputs, warmup_batches))


def renormed_critics(
    observation: BoxSpec | PackedSpec,
    n_actions: int,
    n_critics: int,
    hidden: Sequence[int],
    warmup_batches: int,
) -> nn.Module:
    """Make critics for any observations; layers that encode those are shared."""
    layers = encoder_layers(observation)
    n_inputs = n_features(layers, observation) + n_actions
    each = [RenormedCritic(n_inputs, hidden, warmup_batches) for _ in range(n_critics)]
    critics = SeparateCritics(each)
    return EncodedCritics(nn.Sequential(*layers), critics) if layers else critics


def in_training_mode(network: nn.Module) -> nn.Module:
    """Return a twin in training mode, whose parameters and buffers are those of the network."""
    shared = [*network.parameters(), *network.buffers()]
    twin = copy.deepcopy(network, memo={id(tensor): tensor for tensor in shared})
    return twin.train()


def joined(one: NetworkInput, other: NetworkInput) -> NetworkInput:
    """Return two batches of observations as one."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return torch.cat([one, other])  # type: ignore[list-item]  # both are of one kind
    return {name: torch.cat([field, other[name]]) for name, field in one.items()}


def _layers(
    n_inputs: int, hidden: Sequence[int], n_outputs: int, warmup_batches: int
) -> list[nn.Module]:
    widths = [n_inputs, *hidden]
    layers: list[nn.Module] = [BatchRenorm(n_inputs, warmup_batches)]
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU(), BatchRenorm(narrow, warmup_batches)]
    return [*layers, nn.Linear(widths[-1], n_outputs)]
