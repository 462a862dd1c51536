"""The settings of a benchmark, as the command line sets them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from asyncrl.core.declared import Count, NotNegative, Positive, Widths, check_declared
from asyncrl.envs.gym import EnvConfig

StageName = Literal["env", "sample", "learner", "train"]
"""The stages, in the order of the data flow."""

_SLICE_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Environments, their number, and durations of measurements."""

    env: str = "CartPole-v1"
    """A Gymnasium id, or `module:factory`."""

    env_kwargs: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Keyword arguments of the environment: name, value, name, value, ..."""

    vectorization: Literal["batch", "native"] = "batch"
    """`batch` steps single environments one after another; `native` uses the environment's own
    vector form."""

    actors: Count = 2
    """Actor processes, and processes of the bare loop."""

    envs_per_actor: Count = 128
    """Environments that each actor steps together. With fewer, an actor's own work weighs more."""

    segment_length: Count = 64
    """Rows per segment."""

    frame_stack: Count | None = None
    """Frames per stacked observation; rows hold only the newest frame. 1 keeps observations whole.
    None uses what the environment stacks: 4 in Atari games."""

    hidden: Widths = (64, 64)
    """Units of each hidden layer of the agent: DQN for discrete actions, SAC for others."""

    device: str = "auto"
    """Device of the learner: cpu, cuda, cuda:N, or auto, which takes a GPU if there is one."""

    capacity: Count = 1_000_000
    """Transitions in replay; fewer if memory cannot hold them."""

    batch_size: Count = 256
    """Transitions per batch."""

    seconds: Positive = 5.0
    """Seconds of each single measurement, after its warm-up."""

    warm_up_seconds: NotNegative = 1.0
    """Seconds of the warm-up before each measurement."""

    def __post_init__(self) -> None:
        check_declared(self)

    @property
    def env_config(self) -> EnvConfig:
        """Return the environments of one actor."""
        return EnvConfig(
            id=self.env,
            kwargs=dict(self.env_kwargs),
            n_envs=self.envs_per_actor,
            vectorization=self.vectorization,
        )

    @property
    def slices(self) -> int:
        """Number of slices for a measurement within this process, of about 0.25 s each."""
        return max(1, round(self.seconds / _SLICE_S))

    def env_settings(self) -> dict[str, Any]:
        """Return the settings that every number with environments depends on."""
        return {
            "env_kwargs": dict(self.env_kwargs),
            "vectorization": self.env_config.vectorization,
            "envs_per_actor": self.envs_per_actor,
        }
