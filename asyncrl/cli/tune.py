"""`asyncrl bench tune`, and the search of `asyncrl train --actors auto` before training."""

from __future__ import annotations

import dataclasses
import json
import shlex
from dataclasses import dataclass, replace
from typing import Annotated

from asyncrl.cli.flags import RunArguments, Start, parse_with_agent
from asyncrl.cli.output import show
from asyncrl.cli.parser import key_of, split
from asyncrl.core.declared import COMMON, Positive, settings_of
from asyncrl.core.errors import ConfigError
from asyncrl.metrics import limits
from asyncrl.replay.sequences import SequenceReplayConfig
from asyncrl.run.modes import check_mode
from asyncrl.run.run_config import RunConfig
from asyncrl.tools.bench.trial import Trial, run_trial
from asyncrl.tools.bench.tuner import Plan, SearchSpace, Tuner, Tuning

_TRIAL_S = 1.0
_FEWEST_STEPS_EACH = 1000
"""Minimum steps per environment in a run whose steps are limited."""

_HEAD = "actors   envs   rows  env steps/s  opt steps/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(Start):
    """Find how many actors, environments and rows train fastest on this machine.

    Takes the settings of `asyncrl train`; values given by a flag are kept, but for the actors.
    """

    seconds: Annotated[Positive, COMMON] = 60.0
    """Time limit of the search in seconds."""

    json: Annotated[bool, COMMON] = False
    """Print one line of JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneArguments:
    """The parsed command line."""

    run: RunArguments[TuneOptions]
    words: list[str]
    """Those that `asyncrl train` takes beside the choice."""


def parse(argv: list[str]) -> TuneArguments:
    """Parse the command line after `asyncrl bench tune`."""
    parsed = parse_with_agent("asyncrl bench tune", [*argv, "--actors", "auto"], TuneOptions)
    own = settings_of(TuneOptions).keys() - settings_of(Start).keys()
    others = own | {"actors", "envs_per_actor", "segment.length"}  # these are chosen
    parts = [part for part in split(argv) if part and key_of(part[0]) not in others]
    if argv[0].startswith("-"):
        parts.insert(0, [parsed.agent])
    return TuneArguments(run=parsed, words=[word for part in parts for word in part])


def run(arguments: TuneArguments) -> int:
    """Search, and return the exit code."""
    options, agent, config = arguments.run.output, arguments.run.agent, arguments.run.config
    if not options.json:
        show(f"{agent} on {config.env}, at most {options.seconds:.0f} s")
    _, tuning = tune(
        config, seconds=options.seconds, search_space=arguments.run.auto, quiet=options.json
    )
    chosen = tuning.chosen
    command = (
        f"asyncrl train {shlex.join(arguments.words)} --actors {chosen.actors} --envs-per-actor "
        f"{chosen.envs_per_actor} --segment.length {chosen.segment_length}"
    )
    if options.json:
        plan = dataclasses.asdict(chosen)
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
    report(_HEAD)
    tuning = Tuner(
        run_plan=lambda plan: _trial(configured(plan)),
        start=Plan(
            actors=min(config.actors, search_space.most_actors),
            envs_per_actor=config.envs_per_actor,
            segment_length=config.segment.length,
        ),
        budget_s=seconds,
        search_space=search_space,
        on_tried=lambda one: report(
            _row(one.plan, one.trial.env_steps_per_s, one.trial.opt_steps_per_s)
        ),
        on_failed=lambda plan, error: report(
            f"{_row(plan)}  cannot run: {str(error).splitlines()[0]}"
        ),
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


def _row(plan: Plan, *rates: float) -> str:
    settings = f"{plan.actors:>6}  {plan.envs_per_actor:>5}  {plan.segment_length:>5}"
    return settings + "".join(f"  {rate:>11,.0f}" for rate in rates)
