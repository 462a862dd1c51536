"""What SAC is made of: an actor, critics, the bounds it acts in, and actions drawn between them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import hardtanh, softplus

from asyncrl.agents._checks import check_answer
from asyncrl.agents._critics import SeparateCritics, standard_critics
from asyncrl.agents.networks import encoded_mlp, no_observations
from asyncrl.env import BoxSpec, EnvSpec
from asyncrl.errors import ConfigError

__all__ = [
    "LOG_STD_MAX",
    "LOG_STD_MIN",
    "MakeNetwork",
    "bounded_actions",
    "make_actor",
    "make_critics",
    "sample_action",
]

MakeNetwork = Callable[[EnvSpec], nn.Module]
"""Makes a network of the user's own."""

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


def make_actor(spec: EnvSpec, hidden: tuple[int, ...], own: MakeNetwork | None) -> nn.Module:
    """Make the default actor or the user's own, whose answer is checked."""
    n_actions = math.prod(spec.action.shape)
    if own is None:
        return encoded_mlp(spec.observation, hidden, 2 * n_actions)
    actor = own(spec)
    out = actor(no_observations(spec.observation, 2))
    check_answer("actor_network", out.shape, [(2, 2 * n_actions)])
    return actor


def make_critics(
    spec: EnvSpec, hidden: tuple[int, ...], n_critics: int, own: MakeNetwork | None
) -> nn.Module:
    """Make default critics or the user's own, whose answer is checked."""
    n_actions = math.prod(spec.action.shape)
    if own is None:
        return standard_critics(spec.observation, n_actions, n_critics, hidden)
    critics = [own(spec) for _ in range(n_critics)]
    out = critics[0](no_observations(spec.observation, 2), torch.zeros(2, n_actions))
    check_answer("critic_network", out.shape, [(2, 1), (2,)])
    return SeparateCritics(critics)


def bounded_actions(spec: EnvSpec) -> BoxSpec:
    """Return the box of actions, or say why SAC cannot act in it."""
    box = spec.action
    if not isinstance(box, BoxSpec):
        raise ConfigError(
            f"SAC chooses continuous actions, but these are {box.n} discrete ones; use DQN"
        )
    if np.dtype(box.dtype).kind != "f":
        raise ConfigError(
            f"SAC chooses actions of a float dtype, but these are {box.dtype}"
            f"{', several choices at once; use PPO' if box.categorical else ''}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        width = box.high.astype(np.float32) - box.low.astype(np.float32)
    if not (np.isfinite(width) & (width > 0)).all():
        raise ConfigError(
            "SAC squashes actions between bounds, which must be finite and apart, but these are "
            f"low={box.low.tolist()}, high={box.high.tolist()}; give the environment's action "
            "space bounds where it is made"
        )
    return box


def sample_action(actor_output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions in [-1, 1] and the logarithms of their probability densities."""
    mean, log_std = actor_output.chunk(2, dim=1)
    log_std = hardtanh(log_std, LOG_STD_MIN, LOG_STD_MAX)  # clamps, with a cheaper gradient
    u = torch.addcmul(mean, log_std.exp(), noise)
    # a = tanh u, so log pi(a|s) = sum_j log N(u_j; mean, std) - log(1 - tanh^2 u_j), where
    # log N = -noise^2 / 2 - log std - log(2 pi) / 2 and, without cancellation for large |u|,
    # log(1 - tanh^2 u) = 2 (log 2 - u - softplus(-2 u)).
    normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    squash = math.log(2.0) - u - softplus(-2.0 * u)
    log_prob: Tensor = (normal - 2.0 * squash).sum(dim=1)
    return u.tanh(), log_prob
