"""Prepares a workload: the spaces of its environment, an agent for them, random experience."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import psutil

from asyncrl.actor.step_processor import OneStep
from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.core.agent import AgentConfig, PolicyContext
from asyncrl.core.env import DiscreteSpec, EnvSpec
from asyncrl.core.segment import SegmentConfig, SegmentSchema, make_schema
from asyncrl.core.types import Array, Columns
from asyncrl.envs.gym import frame_skip
from asyncrl.envs.spaces import random_actions
from asyncrl.fleet.config import ActorManagerConfig
from asyncrl.fleet.in_child import CHILD_ID, run_in_child
from asyncrl.fleet.local import LocalLauncher
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.describe_env import PRELOAD, describe_in_child
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.tools.bench.workload import Workload

_MEMORY_SHARE = 0.4
"""Share of the free memory for a replay and for the bare arrays that it is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A workload and the facts about its environment."""

    workload: Workload
    spec: EnvSpec
    frame_skip: int
    frame_stack: int
    """Frames per observation, of which rows hold the newest; 1 if they hold it whole."""

    agent: AgentConfig
    schema: SegmentSchema
    capacity: int
    """Transitions in replay, at most what memory can hold twice."""

    @classmethod
    def of(cls, workload: Workload) -> Load:
        """Inspect the environments in child processes, and choose an agent that fits."""
        config, start_s = workload.env_config, ActorManagerConfig().start_timeout_s
        with LocalLauncher(preload=PRELOAD, names={CHILD_ID: "environment"}) as launcher:
            spec, _, n_frames, _ = describe_in_child(
                config.build, timeout_s=start_s, launcher=launcher
            )
            skip: int = run_in_child(
                partial(frame_skip, config), what="building the environment", launcher=launcher
            )
        frame_stack = n_frames if workload.frame_stack is None else workload.frame_stack
        discrete = isinstance(spec.action, DiscreteSpec)
        # One thread, so that stages and runs compute alike beside others as well as alone.
        agent: AgentConfig = (
            DQNConfig(hidden=workload.hidden, device=workload.device, threads=1)
            if discrete
            # The policy acts from the first step on.
            else SACConfig(
                hidden=workload.hidden, device=workload.device, threads=1, random_env_steps=0
            )
        )
        processor = OneStep(frame_stack=frame_stack)
        schema = make_schema(
            processor.columns(spec, agent.extra_columns(spec)),
            length=workload.segment_length,
            lookahead=UniformReplayConfig().lookahead,
            frame_stack=frame_stack,
        )
        return cls(
            workload=workload,
            spec=spec,
            frame_skip=skip,
            frame_stack=frame_stack,
            agent=agent,
            schema=schema,
            capacity=_fitting(workload.capacity, schema),
        )

    @property
    def context(self) -> PolicyContext:
        """Return the context of the learner's agent."""
        return PolicyContext(
            seed=0, n_actors=self.workload.actors, n_envs=self.workload.envs_per_actor
        )

    def async_config(self, *, min_size: int = 1000) -> RunConfig:
        """Return a run in which neither side waits for the other."""
        return RunConfig(
            actors=self.workload.actors,
            segment=SegmentConfig(
                length=self.workload.segment_length, frame_stack=self.frame_stack
            ),
            replay=UniformReplayConfig(capacity=self.capacity),
            limiter=RateLimiterConfig(
                samples_per_insert=0.0, min_size=min(min_size, self.capacity)
            ),
            trainer=AsyncTrainerConfig(batch_size=self.workload.batch_size),
            evaluate=EvaluationConfig(where="off"),
        )


def synthetic_experience(schema: SegmentSchema, spec: EnvSpec, segments: int) -> Columns:
    """Return full segments of random experience without an episode's end."""
    random = np.random.default_rng(0)
    shape = (segments, schema.rows)
    columns: dict[str, Array] = {
        c.name: np.zeros((*shape, *c.shape), c.dtype) for c in schema.columns
    }
    columns["reward"][:] = random.standard_normal(columns["reward"].shape)
    obs = columns["obs"]
    if obs.dtype.kind in "iu":
        obs[:] = random.integers(0, 2, obs.shape, obs.dtype)
    else:
        obs[:] = random.standard_normal(obs.shape)
    columns["action"][:] = random_actions(spec.action, shape, random)
    return columns


def _fitting(capacity: int, schema: SegmentSchema) -> int:
    """Return the capacity, or the largest of 1, 2, 5, 10, ... that memory can hold twice."""
    row_bytes = schema.segment_bytes / schema.length
    fits = _MEMORY_SHARE * psutil.virtual_memory().available / (2 * row_bytes)
    if capacity <= fits:
        return capacity
    steps = (step * 10**power for power in range(12) for step in (1, 2, 5))
    return max((step for step in steps if step <= fits), default=1)
