"""Custom networks, and checks of their output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from asyncrl.agents.parts.networks import MakeNetwork, NetworkInput, no_observations
from asyncrl.core.env import ACTION_MASK, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError

_PLAIN = "observation"
"""Name of the only other field, if networks get it as a plain observation."""


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


def own_network(
    name: str,
    make: MakeNetwork,
    spec: EnvSpec,
    expected: Sequence[tuple[int, ...]],
    *others: Tensor,
) -> nn.Module:
    """Return a custom network that learns, after checking its output for 2 observations."""
    network = _made(name, make, spec)
    if (shape := _answer(name, network, spec, *others)) not in expected:
        raise ConfigError(
            f"agent.{name} must map 2 observations to shape {' or '.join(map(str, expected))}, got "
            f"{shape}"
        )
    # Checked only now, since lazy layers create their parameters at the first call.
    if not any(param.requires_grad for param in network.parameters()):
        raise ConfigError(
            f"agent.{name} must return a network that can learn, but this {_kind(network)} has no "
            "parameters, or all of them are frozen; give it at least one layer of weights, such "
            "as nn.Linear, whose requires_grad is True"
        )
    _check_dtypes(name, network)
    return network


def own_networks(
    name: str,
    make: MakeNetwork,
    spec: EnvSpec,
    count: int,
    expected: Sequence[tuple[int, ...]],
    *others: Tensor,
) -> list[nn.Module]:
    """Return independent networks, made as `own_network` makes one.

    Each is called once, since lazy layers have no parameters before.
    """
    networks = [own_network(name, make, spec, expected, *others) for _ in range(count)]
    if len({one.network if isinstance(one, WithoutMask) else one for one in networks}) < count:
        raise ConfigError(
            f"agent.{name} is called {count} times and must return a new network each time, but it "
            "returned the same one again; create the network inside it"
        )
    return networks


def own_encoder(make: MakeNetwork, spec: EnvSpec) -> tuple[nn.Module, int]:
    """Return a custom encoder, and the number of its features.

    It need not learn: the layers after it do.
    """
    network = _made("network", make, spec)
    shape = _answer("network", network, spec)
    if len(shape) != 2 or shape[0] != 2:
        raise ConfigError(
            "agent.network must map 2 observations to features of shape (2, any number), got "
            f"{shape}"
        )
    _check_dtypes("network", network, torch.float32)  # like the layers after it
    return network, shape[1]


def _made(name: str, make: MakeNetwork, spec: EnvSpec) -> nn.Module:
    """Make a custom network; it gets observations without action masks."""
    if isinstance(make, nn.Module):
        raise ConfigError(
            f"agent.{name} must be a function that makes a network for an EnvSpec, got a "
            f"{_kind(make)}, which is a network; give for instance lambda spec: {_kind(make)}(...)"
        )
    try:
        network = make(without_mask(spec))
    except Exception as error:
        error.add_note(f"asyncrl: in agent.{name}, called with the EnvSpec")
        raise
    if not isinstance(network, nn.Module):
        raise ConfigError(f"agent.{name} must return a torch.nn.Module, got {_kind(network)}")
    return WithoutMask(network) if spec.masked else network


def _check_dtypes(name: str, network: nn.Module, *behind: torch.dtype) -> None:
    """Raise if a network and the layers after it learn in several dtypes, not one."""
    own = {param.dtype for param in network.parameters() if param.requires_grad}
    if own and len(own.union(behind)) > 1:
        names = sorted(str(dtype).removeprefix("torch.") for dtype in own)
        more = ", and the layers after it have float32" if behind else ""
        raise ConfigError(
            f"agent.{name} must return a network that learns in one dtype, but this "
            f"{_kind(network)} has weights of {' and '.join(names)}{more}; call .float() on it "
            "before you return it"
        )


def _answer(name: str, network: nn.Module, spec: EnvSpec, *others: Tensor) -> tuple[int, ...]:
    """Return the shape of the output; normalisation statistics of the network stay unchanged."""
    obs = no_observations(spec.observation, 2)
    answer = _asked(name, network.eval(), obs, others)
    network.train()
    if not isinstance(answer, Tensor):
        raise ConfigError(
            f"agent.{name} must return a network that returns a tensor, got {_kind(answer)}"
        )
    return tuple(answer.shape)


def _asked(name: str, network: nn.Module, obs: NetworkInput, others: Sequence[Tensor]) -> object:
    """Return the network's output; raise if it modifies its input."""
    kept = obs if isinstance(obs, Tensor) else dict(obs)  # or another tensor might reuse its id
    before = _marks(obs, others)
    try:
        with torch.no_grad():
            answer: object = network(obs, *others)
    except Exception as error:
        error.add_note(f"asyncrl: in the network of agent.{name}, given {_shapes(obs)}")
        raise
    if _marks(obs, others) != before or _marks(kept, others) != before:
        raise ConfigError(
            f"agent.{name} must not modify its input, since others read it, too; remove "
            "inplace=True from a first layer, replace in-place operations such as x.mul_(2) by x "
            "* 2, and add nothing to a dict of fields"
        )
    return answer


def _marks(obs: NetworkInput, others: Sequence[Tensor]) -> list[tuple[str, int, int]]:
    """Return the identity of these tensors, and how often each was written to."""
    fields = [("", obs)] if isinstance(obs, Tensor) else [*obs.items()]
    given = [*fields, *(("", other) for other in others)]
    return [(name, id(one), one._version) for name, one in given]  # noqa: SLF001  # no other counter


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _shapes(obs: NetworkInput) -> str:
    """Describe the inputs of a network."""
    if isinstance(obs, Tensor):
        return f"2 observations, of shape {tuple(obs.shape)}"
    fields = ", ".join(f"{field!r} of shape {tuple(obs[field].shape)}" for field in obs)
    return f"2 observations, with {fields}"
