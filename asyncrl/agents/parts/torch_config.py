"""Settings that all agents made of torch modules share: where and how they compute."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, TypeVar, cast

import torch
from torch import nn

from asyncrl.agents.parts.normalize import Normalized
from asyncrl.core.agent import BatchKind
from asyncrl.core.declared import COMMON, Count, Natural, check_declared
from asyncrl.core.env import BoxSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.segment import DISCOUNTED_RETURN, ColumnSpec

Acceleration = Literal["off", "compile", "graphs"]

Precision = Literal["float32", "bfloat16"]

Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchConfig:
    """What does not depend on the algorithm; its config derives from this one."""

    device: Annotated[str, COMMON] = "auto"
    """Where the learner computes: cpu, cuda, cuda:N, or auto, a GPU where there is one. Actors
    compute on a CPU."""

    threads: Annotated[Natural, COMMON] = 1
    """CPU threads that torch uses in the learner's whole process; 0 leaves its own choice. More
    than one pays for large networks only, and takes cores from the actors."""

    precision: Precision = "float32"
    """Of the learner's products of matrices. Parameters, losses, actors, and the last layers of
    networks that are not your own stay in float32."""

    accelerate: Acceleration = "off"
    """`graphs` records an optimisation step on a GPU once and repeats it from then on, which pays
    for all but large networks. `compile` lets torch write its operations anew, which takes a
    minute at first and pays on a GPU; on a CPU it is slower than `off` for small networks."""

    normalize_obs: bool = False
    """Learn the mean and the standard deviation of observations and let networks see them
    normalised. Bytes (images) and choices are left as they are."""

    normalize_reward: bool = False
    """Divide rewards by the standard deviation of the discounted return of episodes so far, which
    the step processor stores beside each row; what is then larger than 10 counts as 10."""

    accumulate: Count = 1
    """Parts in which a batch passes the networks of an optimisation step; the gradients of the
    parts add up to those of the whole. More than one take less memory, and one more pass; it is
    for large networks, since with small ones each part takes as long as the whole. Trajectories and
    sequences stay whole, so that there are no more parts than there are of them."""

    learns_from: ClassVar[BatchKind] = "transitions"

    can_accumulate: ClassVar[bool] = False
    """Whether the algorithm's networks take a batch in parts."""

    def __post_init__(self) -> None:
        check_declared(self, "agent")
        self.check_accumulation()

    def check_accumulation(self) -> None:
        """Refuse parts of a batch where they cannot be taken."""
        if self.accumulate == 1:
            return
        if not self.can_accumulate:
            raise ConfigError(
                f"agent.accumulate={self.accumulate} has no meaning for {type(self).__name__}, "
                "which does not take a batch in parts; leave it at 1, and take smaller batches"
            )
        if self.accelerate != "off":
            raise ConfigError(
                f"agent.accumulate={self.accumulate} computes parts of a batch twice to save "
                f"memory, which agent.accelerate={self.accelerate!r} would undo; set one of the two"
            )

    @property
    def norm_columns(self) -> tuple[ColumnSpec, ...]:
        """Columns that normalisation needs and a step processor fills."""
        return (ColumnSpec(DISCOUNTED_RETURN, "float32"),) if self.normalize_reward else ()

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Return what normalisation needs; an agent that stores more columns adds its own."""
        return self.norm_columns

    def with_norms(self, network: nn.Module, observation: BoxSpec | PackedSpec) -> nn.Module:
        """Return the network, wrapped in the normalisation that was asked for, if any was."""
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

    def uncompiled(self, function: Function) -> Function:
        """Return the function, left as it is where the update around it is compiled.

        What steps optimizers is: `backward` cannot be compiled, and little else is left there.
        """
        if self.accelerate != "compile":
            return function
        return cast(Function, torch.compiler.disable(function))
