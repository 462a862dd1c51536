"""Settings of PPO, and the network they describe."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from asyncrl.agents._policy_value import Activation, PolicyValueNet, make_torso
from asyncrl.agents._stochastic_policy import own_columns
from asyncrl.agents.distributions import ActionHead, action_head
from asyncrl.agents.networks import MakeNetwork
from asyncrl.agents.recurrent import MemoryKind
from asyncrl.agents.schedules import Schedule, check_schedule
from asyncrl.agents.torch_agent import seeded
from asyncrl.agents.torch_config import TorchConfig
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.settings import (
    check_not_negative,
    check_positive,
    check_probability,
    check_widths,
)

Correction = Literal["gae", "vtrace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOSettings(TorchConfig):
    """What `PPOConfig` consists of."""

    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer; for images, of those behind the convolutions."""

    activation: Activation = "tanh"
    """Between the layers."""

    network: MakeNetwork | None = None
    """Makes a torso of your own in place of hidden layers and what is before them: float
    observations (B, ...), images within [0, 1], or a dict of such by field name -> (B, features).
    Linear heads for policy and value come behind it. Must be importable, or cloudpickle-able."""

    shared_torso: bool = False
    """Policy and value see through the same layers, which suits images, instead of their own. With
    a memory they always do."""

    memory: MemoryKind = "none"
    """What remembers earlier observations: one memory for policy and value, between a torso that
    they share and the heads."""

    state_std: bool = False
    """For continuous actions: standard deviations depend on the observation."""

    initial_log_std: float = 0.0
    """Of continuous actions, in units in which their bounds are -1 and 1."""

    correction: Correction = "gae"
    """How advantages are estimated: `vtrace` allows for actions having been chosen by older
    policies, `gae` takes them for the newest one's."""

    lambda_: float = 0.95
    """Weight of later rewards against values; 1 trusts rewards alone, as far as they go."""

    clip_rho: float = 1.0
    """V-trace: the largest importance of an action for the values."""

    clip_c: float = 1.0
    """V-trace: the largest importance that is passed on to what was before."""

    epochs: int = 10
    """How often each transition is learned from."""

    minibatches: int = 4
    """Parts of each batch; one gradient step is taken on each of them in each epoch."""

    learning_rate: float | Schedule = 1e-3
    """Step size of Adam."""

    adam_eps: float = 1e-5
    """Adam's epsilon: what keeps it from dividing by 0."""

    max_grad_norm: float = 0.5
    """Gradients of a larger norm are scaled down to it; 0 leaves them all as they are."""

    clip: float | Schedule = 0.2
    """The objective rewards no change of a probability by more than this share."""

    dual_clip: float = 0.0
    """Where an advantage is negative, the objective falls no deeper than this times it, which keeps
    actions of much older policies from tearing at the newest; more than 1, or 0, which is off."""

    value_clip: float = 0.0
    """No value is rewarded for moving further than this in one batch, in standard deviations of
    targets if values are normalised; 0 is off."""

    value_weight: float = 0.5
    """Of the value's loss."""

    entropy_weight: float | Schedule = 0.0
    """Of the policy's entropy, which is to stay large."""

    target_kl: float = 0.0
    """No further epoch on a batch once the policy is so far, in nats, from the one that has played;
    0 is off."""

    normalize_advantages: bool = True
    """Shift and scale the advantages of each batch to mean 0 and standard deviation 1."""

    normalize_values: bool = True
    """Learn mean and standard deviation of targets, and let the network tell values in units of
    them."""

    can_accumulate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        TorchConfig.__post_init__(self)
        if self.accelerate != "off":
            raise ConfigError(
                f"agent.accelerate={self.accelerate!r} repeats updates of batches of one size, but "
                "those of PPO vary, as the number of episodes in them does; set it to off"
            )
        check_widths("hidden", self.hidden)
        if self.dual_clip and not self.dual_clip > 1.0:
            raise ConfigError(
                f"agent.dual_clip must be more than 1, or 0 (off), got {self.dual_clip}"
            )
        if not math.isfinite(self.initial_log_std):
            raise ConfigError(f"agent.initial_log_std must be finite, got {self.initial_log_std}")
        check_probability("lambda_", self.lambda_)
        for name in ("clip_rho", "clip_c", "adam_eps", "epochs", "minibatches"):
            check_positive(name, getattr(self, name))
        for name in ("max_grad_norm", "dual_clip", "value_clip", "value_weight", "target_kl"):
            check_not_negative(name, getattr(self, name))
        check_schedule("learning_rate", self.learning_rate, check_not_negative)
        check_schedule("clip", self.clip, check_positive)
        check_schedule("entropy_weight", self.entropy_weight, check_not_negative)

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Return what tells how likely each action was, and what was remembered before it."""
        with seeded(0):
            return (*own_columns(self.make_network(spec)), *self.norm_columns)

    def make_network(self, spec: EnvSpec) -> PolicyValueNet:
        """Make the network, from torch's global generator."""
        core = None if self.memory == "none" else self.memory
        torsos = [
            make_torso(spec, self.hidden, self.activation, self.network)
            for _ in range(1 if self.shared_torso or core else 2)
        ]
        return PolicyValueNet([t for t, _ in torsos], torsos[0][1], self._head(spec), core)

    def _head(self, spec: EnvSpec) -> ActionHead:
        return action_head(
            spec.action, state_std=self.state_std, initial_log_std=self.initial_log_std
        )
