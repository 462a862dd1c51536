"""Compiles optimisation steps during a run: `agent.accelerate=auto`.

A run begins with steps that are not compiled. Once enough of it lies ahead, a process of low
priority compiles the same step for batches of the same form. torch keeps the code in a directory,
where the learner then finds it: it only traces the step again, and continues with compiled ones.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.core.agent import Agent, AgentConfig, PolicyContext, build_agent
from asyncrl.core.callback import Callback, Training
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import AsyncRLError, describe_error
from asyncrl.core.launcher import Progress, Spec
from asyncrl.core.messages import Peer
from asyncrl.core.recorder import Record
from asyncrl.core.types import Columns
from asyncrl.fleet.in_child import CHILD_ID
from asyncrl.fleet.local import LocalLauncher
from asyncrl.learner.stop_conditions import as_condition
from asyncrl.run.parts import Parts
from asyncrl.run.plan import RunPlan

_SAVES = 0.12
"""Share of a step's time that compiling saves at least. On 2 cores of an Intel Xeon, SAC's steps of
HalfCheetah with two threads go from 173 to 197 a second. With one thread, compiling saves SAC 0.32,
TD3 0.27, DQN with 256 units 0.30 and with 64 units 0.60."""

_WORTH_S = 30.0
"""Seconds that compiled steps must save in the rest of the run: twice what they cost SAC there. The
learner waits for 5 s, and before that has one core for 18 s to 30."""

_WAITS = 0.5
"""Share of its time waiting for experience from which faster steps would not speed a run up."""

_LOOK_S = 0.5
_TIMEOUT_S = 900.0
_NICENESS = 10
"""Beside two busy processes for each core, it still gets a twentieth of the cores."""

_STEPS = 8
"""Steps of the process: TD3 compiles those with and without an update of its policy."""

_COMPILER = Peer(actor_id=CHILD_ID, incarnation=0)

_logger = logging.getLogger(__name__)


def compiled_in_mid_run(plan: RunPlan, learner: Agent, parts: Parts) -> list[Callback]:
    """Return what compiles the steps of a run with actors, if its agent can be."""
    agent: Any = plan.agent
    compiler = os.environ.get("CXX", "g++")
    eager = getattr(getattr(learner, "updater", None), "why_eager", "the agent is not asyncrl's")
    obstacles = {
        eager: bool(eager),
        f"the learner computes on {agent.device}": str(getattr(learner, "device", "")) != "cpu",
        "several learners add up their gradients": plan.setup.learners > 1,
        "observers may repeat the run": bool(parts.get("observers")),
        f"there is no C++ compiler {compiler}": shutil.which(compiler) is None,
    }
    for why in (why for why, holds in obstacles.items() if holds):
        _logger.debug("optimisation steps will not be compiled: %s", why)
        return []
    stop = parts.get("stop")
    limits = {} if stop is None else as_condition(stop).limits()
    return [CompilesInMidRun(CompilerSpec(agent, plan.spec), limits)]


def saved_s(first: Record, newest: Record, limits: Mapping[str, float]) -> float:
    """Return the seconds that compiled steps would save in the rest of a run.

    Args:
        first: The first record of optimisation.
        newest: The newest record.
        limits: Metrics at which the run ends. Without any, it is as long again as so far.
    """
    if newest.get("share/learner_wait", 0.0) > _WAITS:
        return 0.0
    steps = newest["opt_steps"] - first["opt_steps"]
    ahead = [
        (limit - newest[name]) / max(newest[name] - first[name], 1e-9)
        for name, limit in limits.items()
        if name in newest and name in first
    ]
    return _SAVES * newest["ms/opt"] / 1000 * steps * min(ahead, default=1.0)


@dataclass(frozen=True, slots=True)
class CompilerSpec(Spec):
    """Compiles the steps of an agent for batches of a form; another process finds the code."""

    agent: AgentConfig
    spec: EnvSpec
    form: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Shape and dtype of each column of a batch."""

    directory: Path = Path()
    """For the files of compilers."""

    def run(self, peer: Peer, progress: Progress) -> None:
        """Do some steps with an agent that is made for it; report those that are compiled.

        If it cannot be compiled, a warning says why, and the learner shows it.
        """
        os.nice(_NICENESS)
        logging.disable(logging.INFO)  # the learner says what happens
        tempfile.gettempdir()  # from here on Python's own stays as it is
        os.environ["TMPDIR"] = str(self.directory)
        how: dict[str, Any] = {"accelerate": "compile", "threads": 1}
        config = replace(self.agent, **how)  # type: ignore[type-var]
        agent = build_agent(config, self.spec, PolicyContext(seed=0))
        batch: Columns = {name: np.zeros(*form) for name, form in self.form.items()}
        for _ in range(_STEPS):
            progress.turn("compile_s" in agent.opt(batch))


class CompilesInMidRun(Callback):
    """Has the steps compiled as soon as that pays, and then lets the agent change to them.

    Args:
        job: What is compiled; the form of batches is that of the run.
        limits: Metrics at which the run ends.
    """

    def __init__(self, job: CompilerSpec, limits: Mapping[str, float]) -> None:
        self._job, self._limits = job, limits
        self._first: Record = {}
        self._launcher: LocalLauncher | None = None
        self._began_s = self._next_s = 0.0
        self.is_over = False
        """Whether the steps have been compiled, or will not be."""

    def step(self, trainer: Training) -> None:
        """Now and then look whether compiling pays, or has been done."""
        now_s = time.monotonic()
        if self.is_over or now_s < self._next_s:
            return
        self._next_s = now_s + _LOOK_S
        try:
            if self._launcher:
                self._look(self._launcher, trainer)
            elif self._pays(trainer.last_record):
                self._compile(trainer.agent)
        except (AsyncRLError, OSError) as error:
            self.close(trainer)
            self._give_up(describe_error(error))

    def close(self, trainer: Training) -> None:
        """End the process if it still runs."""
        self.is_over = True
        if self._launcher:
            self._launcher.close()

    def _pays(self, record: Record) -> bool:
        if "ms/opt" not in record:
            return False
        self._first = self._first or record
        return saved_s(self._first, record, self._limits) >= _WORTH_S

    def _compile(self, agent: Any) -> None:  # noqa: ANN401  # one with an updater
        form = {
            name: (column.shape, column.dtype.str)
            for name, column in agent.updater.newest_batch.items()
        }
        self._began_s = time.monotonic()
        self._launcher = LocalLauncher(names={CHILD_ID: "compiler"})
        job = replace(self._job, form=form, directory=self._launcher.directory)
        self._launcher.launch(_COMPILER, job)

    def _look(self, launcher: LocalLauncher, trainer: Any) -> None:  # noqa: ANN401
        ended, took_s = launcher.exits(0.0), time.monotonic() - self._began_s
        if not ended and took_s < _TIMEOUT_S:
            return
        self.close(trainer)
        if not ended:
            self._give_up(f"that took more than {_TIMEOUT_S:.0f} s")
        elif ended[0].code:
            self._give_up(ended[0].error or f"its process ended with code {ended[0].code}")
        elif ended[0].last.produced:
            trainer.agent.compile()
            _logger.info(
                "a separate process has compiled the optimisation steps in %.0f s; they are "
                "compiled from step %d on",
                took_s,
                trainer.opt_steps + 1,
            )

    def _give_up(self, why: str) -> None:
        _logger.warning("optimisation steps are not compiled (agent.accelerate=auto): %s", why)
