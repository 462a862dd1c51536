"""Turns one environment step into 0..n rows of experience. Does not know where rows go."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from asyncrl.core.agent import Act, AgentConfig
from asyncrl.core.env import BatchEnv, EnvDescription, EnvSpec, EnvStep
from asyncrl.core.errors import ConfigError, EnvironmentFault
from asyncrl.core.goals import with_goals
from asyncrl.core.recorder import Record
from asyncrl.core.replay_buffer import ReplayBufferConfig, with_start_columns
from asyncrl.core.segment import (
    DISCOUNTED_RETURN,
    END,
    TRUNCATED,
    ColumnSpec,
    SegmentConfig,
    SegmentSchema,
    make_schema,
)
from asyncrl.core.types import Array, BoolArray, Columns, IntArray, ModelVersion

logger = logging.getLogger(__name__)

_RETURN_GAMMA = 0.99
"""Discount of the returns that define the scale of reward normalisation."""


class Step(NamedTuple):
    """One step of a batch of environments, as the actor saw it."""

    obs: Array
    act: Act
    outcome: EnvStep
    model_version: ModelVersion


class Rows(NamedTuple):
    """One row for each of some environments, or several for all, appended to their streams."""

    env_ids: IntArray
    """Ascending, each at most once."""

    columns: Columns
    """Columns that are left out keep their old values; only `END` rows may leave any out."""

    only: BoolArray | None = None
    """If given, the other rows do not count. A mask is faster than leaving them out."""

    turns: int = 1
    """If more than one, `env_ids` are all environments, `only` is None, and the columns hold their
    rows of the first turn, then those of the second, and so on. At most as many as an outbox has
    `room` for."""


class StepProcessor(Protocol):
    """Turns steps into rows. One processor serves one batch of environments from start to end."""

    def columns(self, spec: EnvSpec, extras: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
        """Return the columns of its rows, given the environment's and the policy's.

        Called before the first step of each batch, so a processor may fill a column that a policy
        asks for.
        """
        ...

    def process(self, step: Step) -> Iterator[Rows]:
        """Yield the rows of one step, in the order in which they are stored."""
        ...

    def finish(self, obs: Array) -> Iterator[Rows]:
        """Yield rows that close every stream; `obs` are the environments' current observations."""
        ...

    def record(self) -> Record:
        """Return metrics about the processed steps; actors report them beside the policy's."""
        ...


class OneStep:
    """Each step becomes one row; the end of an episode adds one more with its last observation.

    If observations are stacks of frames, a row holds the newest frame: see `segment.py`.
    """

    def __init__(self, *, frame_stack: int = 1, return_gamma: float | None = None) -> None:
        """Serve one batch of environments.

        With `return_gamma`, or for an agent that asks for it, the column `discounted_return` is
        filled: the episode's rewards so far, each discounted by the steps since then. Reward
        normalisation derives its scale from it.
        """
        self._stacks = _Stacks(frame_stack) if frame_stack > 1 else None
        self._return_gamma = return_gamma
        self._return: Array = np.zeros(1, np.float32)
        self._shapes: dict[str, tuple[int, ...]] = {}
        # Cached, since it is the same in nearly every step.
        self._all_envs: IntArray = np.arange(0)
        self._end_flags: Array = np.zeros(0, np.uint8)
        self._versions: IntArray = np.zeros(0, np.int32)

    def columns(self, spec: EnvSpec, extras: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
        """Observation, action, reward, flags, model version, and the policy's extra columns."""
        if self._stacks:
            self._stacks.check(spec)
        if self._return_gamma is None and any(c.name == DISCOUNTED_RETURN for c in extras):
            self._return_gamma = _RETURN_GAMMA
        self._shapes = {"action": spec.action.shape, **{c.name: c.shape for c in extras}}
        shape = spec.observation.shape[1:] if self._stacks else spec.observation.shape
        return (
            ColumnSpec("obs", spec.observation.dtype, shape),
            ColumnSpec("action", spec.action.dtype, spec.action.shape),
            ColumnSpec("reward", "float32"),
            ColumnSpec("flags", "uint8"),
            ColumnSpec("model_version", "int32"),
            *extras,
        )

    def process(self, step: Step) -> Iterator[Rows]:
        """Yield the step's rows, then the last observations of episodes that ended in it."""
        out = step.outcome
        flags = out.terminated.view(np.uint8)
        if np.count_nonzero(out.truncated):
            flags = flags | out.truncated.view(np.uint8) * TRUNCATED
        if self._stacks:
            self._stacks.check_step(step)
        if len(self._all_envs) != len(flags):
            self._all_envs = np.arange(len(flags))
            self._end_flags = np.full(len(flags), END, np.uint8)
        if len(self._versions) != len(flags) or self._versions[0] != step.model_version:
            self._versions = np.full(len(flags), step.model_version, np.int32)
        columns = {
            "obs": self._newest(step.obs),
            "action": step.act.action,
            "reward": out.reward,
            "flags": flags,
            "model_version": self._versions,
            **step.act.extras,
        }
        if self._return_gamma is not None:
            so_far = self._return * np.float32(self._return_gamma) + out.reward
            self._return = np.where(flags, np.float32(0), so_far)
            columns[DISCOUNTED_RETURN] = so_far
        yield Rows(self._all_envs, columns, out.stepped)
        if len(ended := flags.nonzero()[0]):
            last = self._newest(out.final_obs.take(ended, axis=0))
            yield Rows(ended, {"obs": last, "flags": self._end_flags[: len(ended)]})

    @property
    def merges(self) -> bool:
        """Whether the rows of a step depend on no earlier step, so that steps can be merged."""
        return self._return_gamma is None and not self._stacks

    def process_all(self, steps: Sequence[Step]) -> Iterator[Rows]:
        """Yield the rows of several steps, of which only the last one can have ended episodes.

        All but the last are `is_plain`.
        """
        *plain, last = steps
        if self.merges and self._are_as_declared(plain):
            yield _merged(plain)
            steps = [last]
        for step in steps:
            yield from self.process(step)

    def _are_as_declared(self, steps: Sequence[Step]) -> bool:
        """Whether the policy's columns can be merged; others fit, or are refused, step by step."""
        n_envs = len(steps[0].outcome.reward)
        declared = {name: (n_envs, *shape) for name, shape in self._shapes.items()}
        layouts = [
            {
                name: (c.shape, c.dtype)
                for name, c in (("action", s.act.action), *s.act.extras.items())
            }
            for s in steps
        ]
        shapes = {name: shape for name, (shape, _) in layouts[0].items()}
        return shapes == declared and all(layout == layouts[0] for layout in layouts)

    def finish(self, obs: Array) -> Iterator[Rows]:
        """Yield the observation after the last row of every environment."""
        flags = np.full(len(obs), END, np.uint8)
        yield Rows(np.arange(len(obs)), {"obs": self._newest(obs), "flags": flags})

    def record(self) -> Record:
        """Return no metrics: each step is one row."""
        return {}

    def _newest(self, obs: Array) -> Array:
        return obs[:, -1] if self._stacks else obs


def _merged(steps: Sequence[Step]) -> Rows:
    """Return the rows of steps in which all environments stepped and no episode ended."""
    n_envs = len(steps[0].outcome.reward)
    versions = np.array([step.model_version for step in steps], np.int32)
    columns = {
        "obs": np.concatenate([step.obs for step in steps]),
        "action": np.concatenate([step.act.action for step in steps]),
        "reward": np.concatenate([step.outcome.reward for step in steps]),
        "flags": np.zeros(len(steps) * n_envs, np.uint8),
        "model_version": versions.repeat(n_envs),
    }
    for name in steps[0].act.extras:
        columns[name] = np.concatenate([step.act.extras[name] for step in steps])
    return Rows(np.arange(n_envs), columns, turns=len(steps))


def make_one_step(config: SegmentConfig, extras: Sequence[ColumnSpec]) -> OneStep:
    """Return the processor for these segments and the columns that an agent asks for."""
    asked = any(column.name == DISCOUNTED_RETURN for column in extras)
    return OneStep(frame_stack=config.frame_stack, return_gamma=_RETURN_GAMMA if asked else None)


def made_for(
    make_processor: Callable[[], StepProcessor], spec: EnvSpec, extras: tuple[ColumnSpec, ...]
) -> StepProcessor:
    """Build a processor and let it know which columns an agent asks for."""
    processor = make_processor()
    processor.columns(spec, extras)
    return processor


def schema_of(
    processor: StepProcessor,
    spec: EnvSpec,
    extras: tuple[ColumnSpec, ...],
    segment: SegmentConfig,
    *,
    lookahead: int,
) -> SegmentSchema:
    """Return the schema of the segments that a processor's rows fill."""
    columns = processor.columns(spec, extras)
    whole = any(c.name == "obs" and c.shape == spec.observation.shape for c in columns)
    if segment.frame_stack > 1 and whole:
        raise ConfigError(
            f"segment.frame_stack={segment.frame_stack} needs rows of single frames, but those of "
            f"{type(processor).__name__} hold whole observations of shape "
            f"{spec.observation.shape}; set segment.frame_stack to 1"
        )
    return make_schema(
        columns,
        length=segment.length,
        lookahead=lookahead,
        frame_stack=segment.frame_stack,
    )


def segments_per_message(config: SegmentConfig, schema: SegmentSchema, n_envs: int) -> int:
    """Return how many segments a full message holds: one of each environment, if they fit."""
    return max(1, min(n_envs, config.max_message_bytes // schema.segment_bytes))


class Layout:
    """How the steps of a run become rows of its replay, and the replay's settings."""

    def __init__(
        self,
        agent: AgentConfig,
        env: BatchEnv | EnvDescription,
        replay: ReplayBufferConfig,
        segment: SegmentConfig,
        make_processor: Callable[[], StepProcessor] | None = None,
    ) -> None:
        """Derive the layout; raise `ConfigError` if the parts do not fit together.

        `env` are the environments, or what is known of them.
        """
        spec, n_frames = env.spec, getattr(env, "n_frames", 1)
        if n_frames > segment.frame_stack == 1 and make_processor is None:
            logger.warning(
                "observations are stacks of %d frames, each of which is sent and stored %d times; "
                "set segment.frame_stack=%d to send and store it once",
                *[n_frames] * 3,
            )
        extras = agent.extra_columns(spec)
        make_processor = make_processor or partial(make_one_step, segment, extras)
        self.replay = with_goals(with_start_columns(replay, extras), env)
        self.make_processor: Callable[[], StepProcessor] = partial(
            made_for, make_processor, spec, extras
        )
        self.schema: SegmentSchema = schema_of(
            self.make_processor(), spec, extras, segment, lookahead=replay.lookahead
        )


class _Stacks:
    """Checks that stacks can be rebuilt from their newest frames."""

    def __init__(self, n_frames: int) -> None:
        self._n_frames = n_frames
        self._begins: BoolArray | None = None

    def check(self, spec: EnvSpec) -> None:
        """Refuse observations that are not stacks of `n_frames` frames."""
        shape = spec.observation.shape
        if len(shape) < 2 or shape[0] != self._n_frames:
            raise ConfigError(
                f"segment.frame_stack={self._n_frames} needs observations of {self._n_frames} "
                f"frames stacked along the first axis, but these have shape {shape}; set it to the "
                "number of frames, or to 1 to store whole observations"
            )

    def check_step(self, step: Step) -> None:
        """Raise if a step's observations differ from what is rebuilt from their newest frames."""
        obs, out = step.obs, step.outcome
        begins = self._begins if self._begins is not None else np.ones(len(obs), bool)
        stepped = np.ones(len(obs), bool) if out.stepped is None else out.stepped
        first, before, after = obs[begins & stepped], obs[stepped], out.final_obs[stepped]
        if not np.array_equal(first, np.broadcast_to(first[:, -1:], first.shape)):
            raise EnvironmentFault(
                f"segment.frame_stack={self._n_frames}: an episode began with frames that differ; "
                "its first observation must repeat its first frame "
                '(gymnasium.wrappers.FrameStackObservation(padding_type="reset") does), or set '
                "frame_stack to 1 to store whole observations"
            )
        if not np.array_equal(before[:, 1:], after[:, :-1]):
            raise EnvironmentFault(
                f"segment.frame_stack={self._n_frames}: an observation did not consist of the "
                "newest frames of the previous one and one more; stack frames along the first "
                "axis, newest last, or set frame_stack to 1 to store whole observations"
            )
        ended = out.terminated | out.truncated
        self._begins = np.where(stepped, ended, begins)
