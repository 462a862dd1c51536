"""Records where some of the learner's optimisation steps spend their time, for torch's viewers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsFloat

import torch
from torch.profiler import ProfilerActivity, profile

from asyncrl.core.agent import Agent, AgentConfig, Policy, PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.types import Columns

_SKIP_OPT_STEPS = 50  # they also load what is loaded lazily


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledConfig:
    """Builds another config's agents, the learner's with a profiler around its `opt`."""

    agent: AgentConfig
    """The other one."""

    trace: Path
    """What to write: JSON for https://ui.perfetto.dev or chrome://tracing."""

    opt_steps: int
    """How many optimisation steps to record, after the first 50."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> Agent:
        """Make the learner's agent."""
        agent = self.agent.build(spec, context)
        agent.opt = _Profiled(agent.opt, self.trace, self.opt_steps)  # type: ignore[method-assign]
        return agent

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> Policy:
        """Make an actor's policy, unchanged."""
        return self.agent.build_policy(spec, context)

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Return the agent's."""
        return self.agent.extra_columns(spec)


class _Profiled:
    """An `opt` that profiles some of its calls, once, and then is out of the way."""

    def __init__(
        self, opt: Callable[[Columns], Mapping[str, SupportsFloat]], trace: Path, opt_steps: int
    ) -> None:
        self._opt = opt
        self._trace = trace
        self._last = _SKIP_OPT_STEPS + opt_steps
        self._done = 0
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)

    def __call__(self, batch: Columns) -> Mapping[str, SupportsFloat]:
        if self._done == _SKIP_OPT_STEPS:
            self._profile.start()
        record = self._opt(batch)
        self._done += 1
        if self._done == self._last:
            self._profile.stop()
            self._profile.export_chrome_trace(str(self._trace))
        return record
