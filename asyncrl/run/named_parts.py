"""Objects of a run that its settings name by import path: the content of `parts` in a file.

In Python they are arguments of the functions that train.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from asyncrl.actor.step_processor import StepProcessor
from asyncrl.core.agent import AgentConfig
from asyncrl.core.callback import Callback
from asyncrl.core.errors import ConfigError
from asyncrl.core.evaluator import MakeEvaluator
from asyncrl.core.named import Named
from asyncrl.core.recorder import Recorder
from asyncrl.core.settings import has_methods
from asyncrl.learner.stop_conditions import StopCondition, StopFunction
from asyncrl.learner.trainer import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedParts:
    """Custom parts of a run by import path.

    Each is `module:name`, or with settings `module:name(setting=value)`.
    """

    stop: Named | None = None
    """Ends the run, in addition to its limits: a class of stop conditions, a condition, or a
    function that gets each record and returns the reason to stop."""

    recorders: tuple[Named, ...] = ()
    """Recorders, in addition to those that flags choose."""

    callbacks: tuple[Named, ...] = ()
    """Callbacks, called in this order."""

    evaluator: Named | None = None
    """Scores policies in place of `EpisodeEvaluator`."""

    processor: Named | None = None
    """Turns steps into rows in place of `OneStep`, such as `Trajectories`; not offline."""

    strategy: Named | None = None
    """Replaces the training loop of an asynchronous run."""

    actor_agents: Named | None = None
    """Lets actors of an asynchronous run act differently: a function that is called with the
    agent's settings and the number of actors, and returns settings for each actor."""

    @property
    def given(self) -> list[str]:
        """The names of those that are set, with that of their group."""
        return [f"parts.{one.name}" for one in fields(self) if getattr(self, one.name)]

    def check(self) -> None:
        """Raise `ConfigError` for what cannot be imported or called."""
        self.make_stop()
        for name in ("recorders", "callbacks", "evaluator", "processor", "strategy"):
            value = getattr(self, name)
            for named in value if isinstance(value, tuple) else filter(None, [value]):
                named.load(f"parts.{name}")
        if self.actor_agents:
            self.actor_agents.load("parts.actor_agents", "agent", "actors")

    def make_stop(self) -> StopCondition | StopFunction | None:
        """Return the stop condition, if any."""
        if self.stop is None:
            return None
        target = self.stop.target("parts.stop")
        if isinstance(target, type):
            return self.stop.make("parts.stop")  # type: ignore[no-any-return]
        return target if has_methods(target, "update") else self.stop.load("parts.stop", "record")

    def make_recorders(self) -> list[Recorder]:
        """Return the recorders."""
        return [
            _made("recorders", one, "Recorder", lambda it: has_methods(it, *_OF_RECORDER))
            for one in self.recorders
        ]

    def make_callbacks(self) -> list[Callback]:
        """Return the callbacks."""
        return [
            _made("callbacks", one, "Callback", lambda it: isinstance(it, Callback))
            for one in self.callbacks
        ]

    def make_strategy(self) -> Strategy | None:
        """Return the strategy, if any."""
        if self.strategy is None:
            return None
        strategy: Strategy = _made(
            "strategy", self.strategy, "Strategy", lambda it: has_methods(it, "run")
        )
        return strategy

    @property
    def make_evaluator(self) -> MakeEvaluator | None:
        """The function that builds the evaluator, if any."""
        return self.evaluator.load("parts.evaluator") if self.evaluator else None

    @property
    def make_processor(self) -> Callable[[], StepProcessor] | None:
        """The function that builds the step processor, if any."""
        return self.processor.load("parts.processor") if self.processor else None

    def agents_of_actors(self, agent: AgentConfig, actors: int) -> Sequence[AgentConfig] | None:
        """Return a config of each actor, if they differ."""
        if self.actor_agents is None:
            return None
        made = self.actor_agents.load("parts.actor_agents", "agent", "actors")(agent, actors)
        if not isinstance(made, Sequence):
            raise ConfigError(
                f"parts.actor_agents: {self.actor_agents.path} must return a list of agents' "
                f"settings, one per actor, got {made!r:.80}"
            )
        return made


_OF_RECORDER = ("start", "write", "close")


def _made(name: str, named: Named, kind: str, fits: Callable[[object], bool]) -> Any:  # noqa: ANN401
    """Make an object; refuse one that is not of a kind."""
    made = named.make(f"parts.{name}")
    if not fits(made):
        raise ConfigError(f"parts.{name}: {named.path} must give a {kind}, got {made!r:.80}")
    return made
