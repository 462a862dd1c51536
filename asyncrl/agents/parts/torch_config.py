"""Settings that all torch agents share: where and how they compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import nn

from asyncrl.agents.parts.normalize import Normalized
from asyncrl.agents.parts.torch_agent import CPU, TorchPolicy
from asyncrl.core.agent import BatchKind, PolicyContext
from asyncrl.core.declared import COMMON, Count, Natural, check_declared
from asyncrl.core.env import BoxSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import DISCOUNTED_RETURN, ColumnSpec

Acceleration = Literal["off", "compile", "graphs"]

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchConfig(ABC):
    """Settings that do not depend on the algorithm; its config derives from this class."""

    device: Annotated[str, COMMON] = "auto"
    """Device of the learner: cpu, cuda, cuda:N, or auto, which takes a GPU if there is one. Actors
    compute on a CPU."""

    threads: Annotated[Natural | Literal["auto"], COMMON] = "auto"
    """CPU threads of torch in the learner's process. `auto` changes the number in the course of a
    run: it takes cores that are idle as long as optimisation steps take less time with them, and
    gives them back when others need them. 0 keeps torch's default, which takes all cores; beside
    busy actors an optimisation step then takes five to twelve times as long."""

    precision: Precision = "float32"
    """Precision of the learner's matrix products. Parameters, losses, actors, and the last layers
    of built-in networks stay in float32. On a CPU without instructions for bfloat16 (`avx512_bf16`
    or `amx_bf16` in /proc/cpuinfo), steps with bfloat16 can take three times as long."""

    accelerate: Acceleration = "off"
    """`graphs` captures an optimisation step on a GPU once and replays it; it pays off for all but
    large networks. `compile` translates the whole step, with gradients and Adam, into one function
    of machine code: on a CPU a step of SAC, TD3 or DQN then takes a quarter to a half less time.
    Compiling takes about a minute at first and ten seconds in later runs, which find the code in
    the directory that a log line names. Where something in a step cannot be compiled, a log line
    says what, and the step runs as with `off`."""

    normalize_obs: bool = False
    """Normalise observations by their running mean and standard deviation. Images
    (bytes from 0 to 255 in two or more dimensions) and discrete observations stay as they are."""

    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return, which the step
    processor stores with each row. Results are clipped to [-10, 10]."""

    accumulate: Count = 1
    """Gradient accumulation: the number of parts in which a batch passes the networks. More parts
    take less memory, but one more pass. Use it for large networks; with small ones each part takes
    as long as the whole batch. Trajectories and sequences stay whole, so there are at most as many
    parts as trajectories or sequences."""

    learns_from: ClassVar[BatchKind] = "transitions"

    can_accumulate: ClassVar[bool] = False
    """Whether the algorithm supports gradient accumulation."""

    def __post_init__(self) -> None:
        check_declared(self, "agent")
        if self.accumulate > 1 and not self.can_accumulate:
            raise ConfigError(
                f"agent.accumulate={self.accumulate} has no effect on {type(self).__name__}, which "
                "does not support gradient accumulation; set it to 1, and use smaller batches"
            )
        if self.accumulate > 1 and self.accelerate != "off":
            raise ConfigError(
                f"agent.accumulate={self.accumulate} computes parts of a batch twice to save "
                f"memory, which agent.accelerate={self.accelerate!r} would undo; set only one of "
                "the two"
            )
        if self.accelerate == "graphs" and self.learns_from != "transitions":
            raise ConfigError(
                "agent.accelerate='graphs' needs batches of one shape, and the number of "
                f"{self.learns_from} in a batch varies; set it to off"
            )

    @abstractmethod
    def policy(self, spec: EnvSpec, context: PolicyContext, device: torch.device) -> TorchPolicy:
        """Return a policy that computes on a device."""

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> TorchPolicy:
        """Return an actor's policy, which computes on a CPU."""
        return self.policy(spec, context, CPU)

    @property
    def norm_columns(self) -> tuple[ColumnSpec, ...]:
        """Columns that normalisation needs; a step processor fills them."""
        return (ColumnSpec(DISCOUNTED_RETURN, "float32"),) if self.normalize_reward else ()

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Return the columns that normalisation needs; an agent that stores more adds its own."""
        return self.norm_columns

    def with_norms(self, network: nn.Module, observation: BoxSpec | PackedSpec) -> nn.Module:
        """Return the network, wrapped in the normalisation that is on, if any."""
        if not self.normalize_obs and not self.normalize_reward:
            return network
        seen = observation if self.normalize_obs else None
        return Normalized(network, seen, rewards=self.normalize_reward)

    def precision_on(self, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
        """Return the context in which to multiply matrices: one for each pass of a network.

        Within one context torch converts each parameter once, so parameters must not change there.
        """
        if self.precision == "float32":
            return nullcontext
        return partial(torch.autocast, device.type, torch.bfloat16)
