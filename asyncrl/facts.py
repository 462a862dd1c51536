"""What decides what limits a run: what was set, and what was measured. Judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from asyncrl.core.recorder import Record
from asyncrl.cores import Cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was set that decides a verdict."""

    actors: int = 0
    """Actor processes; 0 if the learner's own process acts, or nobody."""

    envs_per_actor: int | None = None
    samples_per_insert: float | None = None
    """As set; 0 is off. What is not known is None."""

    cores: int = field(default_factory=lambda: Cores().count)
    """That this process may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was measured, over a whole run or since the record before."""

    setup: Setup
    actor: Mapping[str, float]
    """Shares of the actors' time by phase, as in `share/actor_*`."""

    learner: Mapping[str, float]
    """Shares of the learner's time by phase, as in `share/learner_*`."""

    wall_s: float
    """That shares are of, if of a whole run; start-up is no part of it."""

    opt_steps: float
    start_up_s: float = 0.0
    """Before that, until the first optimisation step."""

    samples_per_insert: float = 0.0
    """As achieved."""

    restarts: int = 0
    cpu_percent: float | None = None
    """Of one core, by the learner's process."""

    machine_cpu_percent: float | None = None
    """Of all cores, by everything."""

    @classmethod
    def of_record(cls, values: Record, setup: Setup) -> Facts:
        """Read them from the newest values of a run's metrics."""
        return cls(
            setup=setup,
            actor=_below(values, "share/actor_"),
            learner=_below(values, "share/learner_"),
            wall_s=values.get("wall_s", 0.0),
            opt_steps=values.get("opt_steps", 0.0),
            samples_per_insert=values.get("samples_per_insert", 0.0),
            restarts=round(sum(v for name, v in values.items() if name.endswith("/restarts"))),
            cpu_percent=values.get("system/cpu_percent"),
            machine_cpu_percent=values.get("system/machine_cpu_percent"),
        )

    @property
    def actors_wait(self) -> float:
        """The part of their time that actors wait for the learner."""
        return self.actor.get("wait", 0.0)

    @property
    def learner_waits(self) -> float:
        """The part of its time that the learner waits for actors."""
        return self.learner.get("wait", 0.0)


def _below(values: Record, prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): v for name, v in values.items() if name.startswith(prefix)}
