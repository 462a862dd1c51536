"""`asyncrl bench tune`, and the search of `asyncrl train --actors auto` before training."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from asyncrl.bench.trial import Trial, run_trial
from asyncrl.bench.tuner import Plan, SearchSpace, TrialRecord, Tuner, Tuning
from asyncrl.cli.flags import check_config_file
from asyncrl.cli.output import show
from asyncrl.cli.parser import parsed
from asyncrl.core.declared import Positive
from asyncrl.core.env import DiscreteSpec
from asyncrl.core.errors import AsyncRLError, ConfigError
from asyncrl.metrics import limits
from asyncrl.replay.sequences import SequenceReplayConfig
from asyncrl.training.describe_env import describe_env_of_run
from asyncrl.training.modes import check_mode
from asyncrl.training.presets import load_over, preset, preset_like
from asyncrl.training.run_config import RunConfig
from asyncrl.training.yaml_file import load_yaml

_TRIAL_S = 1.0
_FEWEST_STEPS_EACH = 1000
"""Minimum steps per environment in a run whose steps are limited."""

_COLUMNS = (
    ("actors", 6),
    ("envs", 5),
    ("rows", 5),
    ("env steps/s", 11),
    ("opt steps/s", 11),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """Find how many actors, environments and rows train fastest on this machine."""

    agent: str = ""
    """A preset of `asyncrl train`, or `module:Class` of an agent config. Default: `dqn` or `sac`,
    depending on the environment's actions."""

    env: str | None = None
    """A Gymnasium id, or `module:factory`. Default: that of the preset or the file."""

    env_kwargs: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Keyword arguments of the environment, in place of those of the preset or the file."""

    vectorization: Literal["batch", "native"] | None = None
    """`batch` steps single environments one after another; `native` uses the environment's own
    vector form. Default: that of the preset or the file."""

    config: Path | None = None
    """YAML file with the settings to tune, for instance a run's `config.yaml`."""

    seconds: Positive = 60.0
    """Time limit of the search in seconds."""

    json: bool = False
    """Print one line of JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneArguments:
    """The parsed command line."""

    options: TuneOptions
    agent: str
    config: RunConfig
    """The settings from which the search starts."""


def parse(argv: list[str]) -> TuneArguments:
    """Parse the command line after `asyncrl bench tune`."""
    options = parsed(TuneOptions, prog="asyncrl bench tune", args=argv)
    agent, config = _settings(options)
    return TuneArguments(options=options, agent=agent, config=config)


def run(arguments: TuneArguments) -> int:
    """Search, and return the exit code."""
    options, agent, config = arguments.options, arguments.agent, arguments.config
    if not options.json:
        show(f"{agent} on {config.env}, at most {options.seconds:.0f} s")
    tuned, tuning = tune(config, seconds=options.seconds, quiet=options.json)
    command = _command(agent, tuned, options)
    if options.json:
        plan = dataclasses.asdict(tuning.chosen)
        tried = [dataclasses.asdict(one) for one in tuning.tried]
        choice = {"sentence": tuning.sentence, "command": command}
        show(json.dumps({"env": config.env, "agent": agent, **plan, **choice, "tried": tried}))
    else:
        show(render(tuning, command))
    return 0


def tune(
    config: RunConfig,
    *,
    seconds: float,
    search_space: SearchSpace | None = None,
    quiet: bool = False,
) -> tuple[RunConfig, Tuning]:
    """Search; return the settings with the chosen values, and the search.

    Prints a line for each trial when it is over, unless `quiet`.
    Trials use the named parts that act. The others do not change which plan is the fastest, but
    for a strategy, which a trial replaces by its own: it is refused.
    """
    _check(config)
    search_space = _allowed(config, search_space or SearchSpace())

    def configured(plan: Plan) -> RunConfig:
        return replace(
            config,
            actors=plan.actors,
            envs_per_actor=plan.envs_per_actor,
            segment=replace(config.segment, length=plan.segment_length),
        )

    report = (lambda _: None) if quiet else show
    report("  ".join(f"{title:>{width}}" for title, width in _COLUMNS))
    tuning = Tuner(
        run_plan=lambda plan: _trial(configured(plan)),
        start=Plan(
            actors=min(config.actors, search_space.most_actors),
            envs_per_actor=config.envs_per_actor,
            segment_length=config.segment.length,
        ),
        budget_s=seconds,
        search_space=search_space,
        on_tried=lambda tried: report(_row(tried)),
        on_failed=lambda plan, error: report(_failed_row(plan, error)),
    ).run()
    return configured(tuning.chosen), tuning


def _trial(config: RunConfig) -> Trial:
    return run_trial(
        config.agent,
        config.env_config().build,
        config,
        seconds=_TRIAL_S,
        actor_agents=config.parts.agents_of_actors(config.agent, config.actors),
        make_processor=config.parts.make_processor,
    )


def _check(config: RunConfig) -> None:
    """Raise for settings whose speed short runs on this machine cannot measure."""
    if config.elsewhere:
        raise ConfigError(
            f"short runs measure this machine, but with launcher={config.launcher} hosts start the "
            "actors; set launcher to process, or choose their number yourself"
        )
    parts = config.parts
    check_mode(config)
    parts.check()
    if parts.strategy:
        raise ConfigError(
            f"parts.strategy is {parts.strategy.path}, whose speed short runs cannot measure: they "
            "have their own training loop; set actors and envs_per_actor yourself"
        )


def render(tuning: Tuning, command: str) -> str:
    """Format the chosen values as lines of text."""
    lines = ["", tuning.sentence, f"  {command}", f"  found in {tuning.took_s:.0f} s"]
    if tuning.chosen.envs_per_actor != tuning.start.envs_per_actor:
        lines.append(
            "  other numbers of environments explore differently: compare scores, not only rates"
        )
    return "\n".join(lines)


def _settings(options: TuneOptions) -> tuple[str, RunConfig]:
    """Return the agent's name, and the settings to start from."""
    if options.config:
        check_config_file(options.config)
        name = options.agent or preset_like(load_yaml(RunConfig, options.config))
        config = load_over(name, options.config)
    else:
        name = options.agent or _fitting_agent(options)
        config = preset(name)
    return name, _in_environment(config, options)


def _in_environment(config: RunConfig, options: TuneOptions) -> RunConfig:
    """Return the settings with the environment that the flags name."""
    return replace(
        config,
        env=options.env or config.env,
        env_kwargs=options.env_kwargs or config.env_kwargs,
        vectorization=options.vectorization or config.vectorization,
    )


def _fitting_agent(options: TuneOptions) -> str:
    if options.env is None:
        return "dqn"
    config = replace(_in_environment(preset("dqn"), options), envs_per_actor=1)
    return "dqn" if isinstance(describe_env_of_run(config).spec.action, DiscreteSpec) else "sac"


def _allowed(config: RunConfig, search_space: SearchSpace) -> SearchSpace:
    """Exclude what would change the algorithm or cannot be changed; keep within limits."""
    most = search_space.most_envs
    if config.max_env_steps:
        most = min(most, config.max_env_steps // (_FEWEST_STEPS_EACH * config.actors))
    if config.replay.once:
        # A message larger than a batch is learned from in several parts, the last ones late.
        most = min(most, config.trainer.batch_size // config.segment.length)
    # Sequences and trajectories are cut at the ends of segments.
    cut = config.replay.once or isinstance(config.replay, SequenceReplayConfig)
    return replace(
        search_space,
        length=search_space.length and not cut,
        most_actors=min(search_space.most_actors, limits.most_actors()),
        most_envs=max(most, config.envs_per_actor),
    )


def _command(agent: str, config: RunConfig, options: TuneOptions) -> str:
    kwargs = [shlex.quote(f"{word}") for pair in options.env_kwargs.items() for word in pair]
    parts = ["asyncrl train", agent]
    parts += [f"--config {shlex.quote(str(options.config))}"] if options.config else []
    parts += ["--mode async"] if config.mode != "async" else []  # as the short runs were
    parts += ["--data None"] if config.data is not None else []
    parts += [f"--env {shlex.quote(config.env)}"]
    parts += [f"--env-kwargs {' '.join(kwargs)}"] if kwargs else []
    parts += [f"--vectorization {options.vectorization}"] if options.vectorization else []
    parts += [
        f"--actors {config.actors}",
        f"--envs-per-actor {config.envs_per_actor}",
        f"--segment.length {config.segment.length}",
    ]
    return " ".join(parts)


def _row(tried: TrialRecord) -> str:
    trial = tried.trial
    return _aligned(
        *_cells(tried.plan),
        f"{trial.env_steps_per_s:,.0f}",
        f"{trial.opt_steps_per_s:,.0f}",
    )


def _failed_row(plan: Plan, error: AsyncRLError) -> str:
    sentence = str(error).partition("\n")[0]
    return f"{_aligned(*_cells(plan))}  cannot run: {sentence}"


def _cells(plan: Plan) -> tuple[str, ...]:
    counts = (plan.actors, plan.envs_per_actor, plan.segment_length)
    return tuple(map(str, counts))


def _aligned(*cells: str) -> str:
    return "  ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=False))
