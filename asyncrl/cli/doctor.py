"""`asyncrl doctor`: checks whether a machine, an environment or an agent is ready for training.

Environments and agents are checked in a child process. If one crashes or hangs, the report says
where.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from asyncrl.cli.flags import check_config_file
from asyncrl.cli.output import show, wrapped
from asyncrl.cli.parser import POSITIONAL, parsed
from asyncrl.core.declared import Count, Natural, Positive
from asyncrl.core.errors import ConfigError
from asyncrl.envs.gym import EnvConfig
from asyncrl.run.describe_env import describe_env_of_run
from asyncrl.run.plan import RunPlan, check_run
from asyncrl.run.presets import agent_in, load_over, preset
from asyncrl.tools.doctor.environment import examine
from asyncrl.tools.doctor.findings import Finding
from asyncrl.tools.doctor.machine import PlannedRun, memory_bytes, read_facts
from asyncrl.tools.doctor.machine import findings as machine_findings

_PATIENCE_S = 60.0
"""Timeout without a message, in addition to `--seconds`: making an environment may take long."""

_WIDTH = 100
"""Of lines where the terminal is not narrower."""

_INDENT = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorArguments:
    """Check the machine, an environment or an agent; report what is wrong and what to do."""

    env: Annotated[str, POSITIONAL] = ""
    """A Gymnasium id or `module:factory`, as in `asyncrl train --env`; or `module:Class` of an
    agent config, to check the agent's contract. Without it, only the machine is checked."""

    agent: str = ""
    """`module:Class` of an agent config: check this agent in the spaces of ENV instead of playing
    ENV. If ENV names the agent, two small spaces are used."""

    env_kwargs: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Keyword arguments of the environment."""

    env_wrappers: tuple[str, ...] = ()
    """Wrappers to apply to each environment, as in `asyncrl train --env-wrappers`."""

    envs_per_actor: Count = 8
    """Environments that each actor steps together."""

    vectorization: Literal["batch", "native"] = "batch"
    """`batch` steps single environments one after another; `native` uses the environment's own
    vector form."""

    seconds: Positive = 10.0
    """Seconds to play in total."""

    seed: Natural = 0
    """Seed of episodes and actions."""

    preset: str = ""
    """A preset of `asyncrl train`, or `module:Class` of an agent config. Check whether its replay
    and actors fit into this machine."""

    config: Path | None = None
    """The same check for a YAML file, for instance a run's `config.yaml`."""

    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        if bool(self.preset) + (self.config is not None) + bool(self.env) > 1:
            raise ConfigError(
                "give only one of ENV, --preset and --config: the latter two check the machine, "
                "and define their own environment"
            )
        if self.agent and not self.env:
            raise ConfigError(
                "--agent needs an environment, whose spaces the agent is checked in: asyncrl "
                f"doctor ENV --agent {self.agent}; or asyncrl doctor {self.agent} for two small "
                "spaces"
            )
        if self.config is not None:
            check_config_file(self.config)
        if self.env:
            self.env_config()  # raises for settings that no environment can have

    def env_config(self) -> EnvConfig:
        """Return the environments that an actor would step."""
        return EnvConfig(
            id=self.env,
            kwargs=dict(self.env_kwargs),
            n_envs=self.envs_per_actor,
            vectorization=self.vectorization,
            wrappers=self.env_wrappers,
        )


parse = partial(parsed, DoctorArguments, "asyncrl doctor")


def run(arguments: DoctorArguments) -> int:
    """Run the checks; return exit code 1 if any failed."""
    findings = []
    for finding in _findings(arguments):
        findings.append(finding)
        if not arguments.json:
            show(render(finding))
    levels = [finding.level for finding in findings]
    fit = "fail" not in levels
    if arguments.json:
        found = [dataclasses.asdict(finding) for finding in findings]
        about = {"env": arguments.env or None, "agent": arguments.agent or None}
        show(json.dumps({**about, "fit": fit, "findings": found}))
    else:
        verdict = "ready for training" if fit else "not ready for training"
        subject = arguments.agent or arguments.env or "this machine"
        show(f"\n{subject} is {verdict}: {_count(levels)}")
    return 0 if fit else 1


def _findings(arguments: DoctorArguments) -> Iterator[Finding]:
    if not arguments.env:
        yield from machine_findings(read_facts(_planned_run(arguments)))
        return
    yield from examine(
        arguments.env_config(),
        seconds=arguments.seconds,
        seed=arguments.seed,
        patience_s=_PATIENCE_S,
        agent=arguments.agent,
    )


def _planned_run(arguments: DoctorArguments) -> PlannedRun | None:
    """Return the resources of a run. Makes an environment in a child process, as the run would."""
    if not arguments.preset and arguments.config is None:
        return None
    path = arguments.config
    config = load_over(agent_in(path) or "dqn", path) if path else preset(arguments.preset)
    make_env = config.env_config().build
    check_run(config, make_env)
    plan = RunPlan(config, make_env, seen=describe_env_of_run(config))
    return PlannedRun(
        name=str(path or arguments.preset),
        replay_bytes=memory_bytes(config.replay, plan.schema),
        actors=config.actors if config.mode == "async" else 0,
    )


def render(finding: Finding) -> str:
    """Format a finding as lines of text."""
    head = f"{finding.level:<5} {finding.check:<14} "
    lines = [(head, finding.seen)]
    if finding.advice:
        lines.append((" " * _INDENT, f"-> {finding.advice}"))
    return "\n".join(wrapped(f"{start:<{_INDENT}}{text}", _INDENT, _WIDTH) for start, text in lines)


def _count(levels: Sequence[str]) -> str:
    warned, failed = levels.count("warn"), levels.count("fail")
    return (
        f"{failed} {'failure' if failed == 1 else 'failures'}, "
        f"{warned} {'warning' if warned == 1 else 'warnings'}"
    )
