"""Values of a batch's actions, by several networks, whether actions are choices or quantities."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from asyncrl.agents._critics import make_critics
from asyncrl.agents._own_networks import own_network, own_networks
from asyncrl.agents.networks import MakeNetwork, NetworkInput, encoded_mlp
from asyncrl.core.env import DiscreteSpec, EnvSpec
from asyncrl.core.errors import ConfigError


class ChoiceValues(nn.Module):
    """Networks that tell the value of each choice."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, obs: NetworkInput, action: Tensor) -> Tensor:
        """Return the values (networks, B) of choices (B,)."""
        values = self.of_all(obs)
        return values.gather(2, action.expand(len(values), -1)[..., None]).squeeze(2)

    def of_all(self, obs: NetworkInput) -> Tensor:
        """Return the values (networks, B, choices) of all choices."""
        return torch.stack([network(obs) for network in self.networks])


def make_action_values(
    spec: EnvSpec, hidden: tuple[int, ...], n_critics: int, own: MakeNetwork | None, who: str
) -> nn.Module:
    """Make default critics or the user's own: (observations, actions (B, ...)) -> (critics, B).

    Actions are choices, or quantities in units in which their bounds are -1 and 1.
    """
    action = spec.action
    if not isinstance(action, DiscreteSpec):
        if action.categorical:
            raise ConfigError(
                f"{who} values one choice or quantities, but these actions are several choices at "
                f"once, of shape {action.shape}; use BC, or PPO online"
            )
        return make_critics(spec, hidden, n_critics, own)
    if own is None:
        makes = range(n_critics)
        return ChoiceValues([encoded_mlp(spec.observation, hidden, action.n) for _ in makes])
    return ChoiceValues(own_networks("critic_network", own, spec, n_critics, [(2, action.n)]))


def make_state_value(spec: EnvSpec, hidden: tuple[int, ...], own: MakeNetwork | None) -> nn.Module:
    """Make the default network for the values of states or the user's own: (B, ...) -> (B, 1)."""
    if own is None:
        return encoded_mlp(spec.observation, hidden, 1)
    return own_network("value_network", own, spec, [(2, 1)])
