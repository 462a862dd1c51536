"""Networks of the user's own, which are refused unless they answer as they must."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from asyncrl.agents.parts.networks import MakeNetwork, NetworkInput, no_observations
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError


def own_network(
    name: str,
    make: MakeNetwork,
    spec: EnvSpec,
    expected: Sequence[tuple[int, ...]],
    *others: Tensor,
) -> nn.Module:
    """Make a network that learns, whose answer to 2 observations, and others, has such a shape."""
    network = make(spec)
    if (shape := _answer(name, network, spec, *others)) not in expected:
        raise ConfigError(
            f"agent.{name} must answer 2 observations with shape "
            f"{' or '.join(map(str, expected))}, got {shape}"
        )
    # Asked only now, since some layers make theirs when they are first called.
    if not any(param.requires_grad for param in network.parameters()):
        raise ConfigError(
            f"agent.{name} must return a network that can learn, and this {_kind(network)} has no "
            "parameters, or all of them are frozen; give it at least one layer of weights, such as "
            "nn.Linear, whose requires_grad is True"
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
    """Make so many networks, as `own_network` makes one, that have nothing to do with each other.

    Each is asked for an answer, since layers that are lazy have no parameters before.
    """
    networks = [own_network(name, make, spec, expected, *others) for _ in range(count)]
    if len(set(networks)) < count:
        raise ConfigError(
            f"agent.{name} is called {count} times and must make another network each time, but "
            "it returned the same one again; make the network inside of it"
        )
    return networks


def own_encoder(make: MakeNetwork, spec: EnvSpec) -> tuple[nn.Module, int]:
    """Make a network that answers with features; return it, and how many these are.

    It need not learn: what is built behind it does.
    """
    network = make(spec)
    shape = _answer("network", network, spec)
    if len(shape) != 2 or shape[0] != 2:
        raise ConfigError(
            "agent.network must answer 2 observations with features of shape (2, any number), got "
            f"{shape}"
        )
    _check_dtypes("network", network, torch.float32)  # as the layers are that come behind it
    return network, shape[1]


def _check_dtypes(name: str, network: nn.Module, *behind: torch.dtype) -> None:
    """Refuse what learns in several dtypes, together with layers behind it: one vector has one."""
    own = {param.dtype for param in network.parameters() if param.requires_grad}
    if own and len(own.union(behind)) > 1:
        names = sorted(str(dtype).removeprefix("torch.") for dtype in own)
        more = ", and layers of float32 behind it" if behind else ""
        raise ConfigError(
            f"agent.{name} must return a network that learns in one dtype, but this "
            f"{_kind(network)} has weights of {' and '.join(names)}{more}; call .float() on it "
            "before it is returned"
        )


def _answer(name: str, network: nn.Module, spec: EnvSpec, *others: Tensor) -> tuple[int, ...]:
    """Return the shape of an answer; what a network normalises batches by stays as it was."""
    if not isinstance(network, nn.Module):
        raise ConfigError(f"agent.{name} must return a torch.nn.Module, got {_kind(network)}")
    obs = no_observations(spec.observation, 2)
    answer = _asked(name, network.eval(), obs, others)
    network.train()
    if not isinstance(answer, Tensor):
        raise ConfigError(f"agent.{name} must answer with a tensor, got {_kind(answer)}")
    # Some layers do more while they learn, such as adding noise; what they count, a copy counts.
    with suppress(_NoCopy), torch.random.fork_rng(devices=[]):
        _asked(name, _copied(network), obs, others)
    return tuple(answer.shape)


class _NoCopy(Exception):
    """A network holds what cannot be copied, such as a lock, or a tensor that was computed."""


def _copied(network: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(network)
    except Exception as error:
        raise _NoCopy from error


def _asked(name: str, network: nn.Module, obs: NetworkInput, others: Sequence[Tensor]) -> object:
    """Return what a network answers; refuse one that writes into what it is given."""
    kept = obs if isinstance(obs, Tensor) else dict(obs)  # or another might take the place of one
    before = _marks(obs, others)
    try:
        with torch.no_grad():
            answer: object = network(obs, *others)
    except Exception as error:
        error.add_note(f"asyncrl: in what agent.{name} returned, given {_shapes(obs)}")
        raise
    if _marks(obs, others) != before or _marks(kept, others) != before:
        raise ConfigError(
            f"agent.{name} must leave what it is given as it is, since others read it, too, but it "
            "writes there; leave off inplace=True in a first layer, let x * 2, say, take the place "
            "of x.mul_(2), and put nothing into a dict of fields"
        )
    return answer


def _marks(obs: NetworkInput, others: Sequence[Tensor]) -> list[tuple[str, int, int]]:
    """Return which tensors these are, and how often each was written to, be it the same numbers."""
    fields = [("", obs)] if isinstance(obs, Tensor) else [*obs.items()]
    given = [*fields, *(("", other) for other in others)]
    return [(name, id(one), one._version) for name, one in given]  # noqa: SLF001  # nothing else tells


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _shapes(obs: NetworkInput) -> str:
    """Return what a network was given, in words."""
    if isinstance(obs, Tensor):
        return f"2 observations, of shape {tuple(obs.shape)}"
    fields = ", ".join(f"{field!r} of shape {tuple(obs[field].shape)}" for field in obs)
    return f"2 observations, with {fields}"
