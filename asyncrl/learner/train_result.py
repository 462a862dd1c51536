"""How a run ended, and how its time was spent. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from typing import Any, Protocol

from asyncrl.core.agent import Policy
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import ModelInfo
from asyncrl.metrics.verdict import Facts, Setup, Verdict, judge


class TrainedPolicy(Policy, Protocol):
    """Acts with a model of a run, and explores only after `train()`."""

    info: ModelInfo
    """The model's parameters, and the steps of the run when it was taken."""

    def save(self, directory: str | PathLike[str]) -> None:
        """Save it for `load_policy(directory)`, in place of an earlier one there."""
        ...

    def export(self, path: str | PathLike[str]) -> None:
        """Write it as a file that acts without asyncrl, as `asyncrl export` does.

        `.onnx` is an ONNX model; a file of any other name is for `policy_numpy.py`, which is
        written beside it.
        """
        ...


class PolicyMaker(Protocol):
    """Makes policies of the models of a run."""

    @property
    def description(self) -> Mapping[str, Any]:
        """Agent and spaces as plain values; each checkpoint holds them."""
        ...

    def __call__(self, model: ModelInfo) -> TrainedPolicy:
        """Return a policy with this model."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """How a run ended; saved as `summary.json`."""

    stop_reason: str
    wall_s: float
    env_steps: int
    opt_steps: int
    best_by: str = "eval_reward"
    """The metric that selected the best model, as in `save.best_by`."""

    best_score: float | None
    """Its best value."""

    best_opt_steps: int | None
    last_score: float | None
    evaluations: Sequence[Mapping[str, float]] = ()
    """`eval_reward` of each evaluation since the run was started or resumed, with `env_steps` and
    `opt_steps` of the model, and `wall_s` and `train_s` at which the score was known."""

    seconds_to_stop_bar: float | None
    """Seconds until an evaluation met the stop condition; None if something else ended the run."""

    resumed_at_s: float = 0.0
    """`wall_s` at which the run was resumed; 0 if it was not. Times, shares and actors below cover
    only the part after it."""

    start_up_s: float = 0.0
    """Seconds until the first optimisation step was done."""

    end_s: float = 0.0
    """Seconds after the last optimisation step: last evaluation, exit of actors, last
    checkpoint."""

    samples_per_insert: float = 0.0
    evaluation_share: float = 0.0
    """Part of the cores' time that evaluations have taken until the last optimisation step."""

    cpu_percent: float = 0.0
    """CPU use of the learner's process, in percent of one core."""

    machine_cpu_percent: float = 0.0
    """CPU use of all processes, in percent of all cores that the run may use."""

    children_cpu_percent: float | None = None
    """CPU use of the child processes, in percent of one core; None without child processes."""

    throttled_percent: float | None = None
    """Percent of the periods of a CPU quota in which it was used up; None without a quota."""

    lag_at_insert: float | None = None
    """Mean optimisation steps by which the model that acted was behind when experience was stored;
    None in a run without actors."""

    lag_when_sampled: float | None = None
    """The same for the batches of the last record."""

    lag_histogram: Mapping[str, int] = field(default_factory=dict)
    """How many sampled rows were this many optimisation steps old: 0, 1, from 2 on, from 4 on, and
    so on."""

    setup: Setup = field(default_factory=Setup)
    learner_shares: Mapping[str, float]
    """The learner's time by phase, from the first optimisation step to the last one; adds up to
    1."""

    actor_shares: Mapping[str, float] = field(default_factory=dict)
    """The actors' time by phase, until the last optimisation step; adds up to 1."""

    ledger: Mapping[str, int] = field(default_factory=dict)
    actors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What each actor did, by number: steps, steps per second, share of waiting, episodes,
    restarts, and the last numbers of its policy."""

    hosts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Each host that has joined, by name: its `room` for actors, how many it runs now (`actors`),
    how many were `started` on it, whether it was `lost` and has not joined again, or has `left`,
    `round_trip_s` of a message, 0 while unknown, and `traffic_bytes` received from its actors and
    of models sent to them."""

    agent: Mapping[str, float] = field(default_factory=dict)
    """The agent's numbers in the last record with an optimisation step, as under `agent/`."""

    make_policy: Callable[[], TrainedPolicy] | None = field(default=None, compare=False)
    """Returns `policy`; None for a trainer that was built without its spaces."""

    @property
    def policy(self) -> TrainedPolicy:
        """The best model, or the last one if none was evaluated: acts, is saved and exported."""
        if self.make_policy is None:
            raise ConfigError(
                "this trainer does not know its spaces, so it makes no policy; make it by "
                "build_trainer"
            )
        return self.make_policy()

    def __repr__(self) -> str:
        """Return the headline; `summary()` has all values."""
        best = "not evaluated"
        if self.best_score is not None:
            best = f"best score {self.best_score:.4g} after {self.best_opt_steps} opt steps"
        return (
            f"TrainResult({best}; {self.env_steps} env steps and {self.opt_steps} opt steps in "
            f"{self.wall_s:.3g} s; ended because {self.stop_reason})"
        )

    @property
    def env_steps_per_s(self) -> float:
        """Mean rate over the run."""
        return self.env_steps / self.wall_s if self.wall_s else 0.0

    @property
    def opt_steps_per_s(self) -> float:
        """Mean rate over the run."""
        return self.opt_steps / self.wall_s if self.wall_s else 0.0

    @property
    def verdict(self) -> Verdict:
        """What limited the run, and what to do about it."""
        facts = Facts(
            setup=self.setup,
            actor=self.actor_shares,
            learner=self.learner_shares,
            wall_s=max(self.wall_s - self.resumed_at_s - self.start_up_s - self.end_s, 0.0),
            opt_steps=self.opt_steps,
            start_up_s=self.start_up_s,
            samples_per_insert=self.samples_per_insert,
            evaluation=self.evaluation_share,
            restarts=round(sum(row.get("restarts", 0) for row in self.actors.values())),
            cpu_percent=self.cpu_percent,
            machine_cpu_percent=self.machine_cpu_percent,
            children_cpu_percent=self.children_cpu_percent,
            throttled_percent=self.throttled_percent,
            lag_at_insert=self.lag_at_insert,
            lag_when_sampled=self.lag_when_sampled,
        )
        return judge(facts)

    def plot(self, axis: str | None = None) -> Any:  # noqa: ANN401  # a figure
        """Draw the evaluations over `env_steps`, `opt_steps`, `wall_s` or `train_s`.

        By default over `env_steps`, or `opt_steps` of an offline run.
        Returns the figure, which a notebook shows. Needs matplotlib.
        """
        from asyncrl.metrics.curves import draw  # noqa: PLC0415  # few results are drawn

        if not self.evaluations:
            raise ConfigError(
                "the run was not evaluated, so there is no curve: set evaluate.interval_opt_steps, "
                "or draw what a recorder has kept, as MemoryRecorder.plot does"
            )
        if axis is not None and axis not in (axes := self.evaluations[0].keys() - {"eval_reward"}):
            raise ConfigError(f"plot has no axis {axis!r}; it has {', '.join(sorted(axes))}")
        return draw(self.evaluations, ["eval_reward"], axis)

    def summary(self) -> dict[str, Any]:
        """Return plain values, including rates and verdict."""
        values = asdict(replace(self, make_policy=None))
        del values["make_policy"]
        return values | {
            "env_steps_per_s": self.env_steps_per_s,
            "opt_steps_per_s": self.opt_steps_per_s,
            "verdict": self.verdict._asdict(),
        }
