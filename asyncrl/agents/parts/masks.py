"""Action masks: outputs of a network for actions that the observation forbids become very low.

A mask is a field of the observation, see `ACTION_MASK` in `core/env.py`, so it is stored with the
observation and its successor, and reaches every place that computes the network: actors, servers,
updates, exported files. Argmax, softmax and sampling then need no separate mask, and neither do
the targets of an update.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from asyncrl.agents.parts.exploration import FORBIDDEN
from asyncrl.agents.parts.networks import NetworkInput
from asyncrl.core.env import ACTION_MASK, EnvSpec, PackedSpec

_PLAIN = "observation"
"""Name of the only other field, if networks get it as a plain observation."""


def allowed_only(outputs: Tensor, obs: NetworkInput) -> Tensor:
    """Return values or logits (..., actions), near `FORBIDDEN` where the observation's mask is 0.

    Without a mask, or where it allows no action, they are unchanged: an episode may end in a state
    in which nothing can be done.
    """
    if isinstance(obs, Tensor) or ACTION_MASK not in obs:
        return outputs
    forbidden = (obs[ACTION_MASK] == 0.0).to(outputs.dtype)
    # Sums and products only, since exported policies compute this as well. 1 - (1 if nothing is
    # allowed, 0 otherwise) is the factor that leaves such rows unchanged.
    some = forbidden.amin(dim=-1, keepdim=True) - 1.0
    return outputs - forbidden * some * FORBIDDEN


class AllowedOnly(nn.Module):
    """A network of values or logits (B, actions) whose outputs are masked."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: NetworkInput) -> Tensor:
        """Return the masked outputs."""
        return allowed_only(self.network(obs), obs)


def with_mask(network: nn.Module, spec: EnvSpec) -> nn.Module:
    """Return a network whose outputs are masked, if observations have a mask."""
    return AllowedOnly(network) if spec.masked else network


class WithoutMask(nn.Module):
    """A custom network, which gets observations without the mask."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: dict[str, Tensor], *others: Tensor) -> Tensor:
        """Return the network's output."""
        fields: NetworkInput = {name: x for name, x in obs.items() if name != ACTION_MASK}
        if isinstance(fields, dict) and [*fields] == [_PLAIN]:
            fields = fields[_PLAIN]
        answer: Tensor = self.network(fields, *others)
        return answer


def without_mask(spec: EnvSpec) -> EnvSpec:
    """Return the spaces as custom networks see them: without the mask.

    If one field named `observation` is left, it is a plain observation.
    """
    if not spec.masked or not isinstance(spec.observation, PackedSpec):
        return spec
    fields = tuple(field for field in spec.observation.fields if field[0] != ACTION_MASK)
    plain = [name for name, _ in fields] == [_PLAIN]
    return replace(spec, observation=fields[0][1] if plain else PackedSpec(fields))
