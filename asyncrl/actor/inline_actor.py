"""An actor in the learner's own thread, which pushes its rows straight into the replay buffer.

Each incarnation has its own seed and random streams, as in restarted actor processes: so it depends
on nothing before it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from asyncrl.actor.actor import Actor, NewEnv
from asyncrl.actor.outbox import Outbox
from asyncrl.actor.step_processor import StepProcessor
from asyncrl.core.agent import Policy, PolicyWrapper
from asyncrl.core.env import BatchEnv, MakeBatchEnv, make_batch_env
from asyncrl.core.env_checks import checked
from asyncrl.core.errors import ConfigError, EnvironmentFault
from asyncrl.core.goals import ComputesRewards
from asyncrl.core.messages import (
    ActorReport,
    EnvChange,
    EvaluationReport,
    Experience,
    Hello,
    ModelInfo,
    Peer,
)
from asyncrl.core.recorder import Record
from asyncrl.core.replay_buffer import ReplayBuffer
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.core.segment import SegmentConfig, SegmentSchema
from asyncrl.core.transport import Topic
from asyncrl.core.types import ActorId, ModelVersion
from asyncrl.fleet.actor_table import ActorTable

_ID = ActorId(0)


class InlineActor:
    """Steps environments with the learning agent itself."""

    def __init__(
        self,
        policy: Policy,
        env: BatchEnv,
        buffer: ReplayBuffer,
        *,
        schema: SegmentSchema,
        segment: SegmentConfig,
        processor: StepProcessor,
        seed: int,
        change_env: Callable[[Mapping[str, Any]], MakeBatchEnv] | None = None,
    ) -> None:
        """`change_env` returns a function that builds environments with other keyword arguments."""
        self._policy = _OwnModel(policy)
        self.envs = InlineEnvs(env, buffer, processor, seed, change_env)
        self._link = _BufferLink(buffer, self.envs)
        self._schema = schema
        self._segment = segment
        self._processor = processor
        self._seed = seed
        self.table = ActorTable()
        self._incarnation = 0
        self._env_steps_before = 0
        self._actor = self._started()

    @property
    def env_steps(self) -> int:
        """Environment steps of all incarnations."""
        return self._env_steps_before + self._actor.env_steps

    @property
    def model_version(self) -> ModelVersion:
        """Version of the model that acts."""
        return self._link.version

    @model_version.setter
    def model_version(self, version: ModelVersion) -> None:
        self._link.version = version

    def begin_incarnation(self) -> None:
        """Begin new episodes in all environments, with the newest keyword arguments."""
        if self.envs.wanted.number > self.envs.change_number:
            self.envs.change(self.envs.wanted)
            self._actor = self._started()
        # The first incarnation needs no number in its seed.
        incarnation = (_ID, self._incarnation) if self._incarnation else (_ID,)
        self._actor.start(derive_seed(self._seed, Role.ENVIRONMENT, *incarnation))

    def run_step(self) -> None:
        """Take one step in all environments."""
        self._actor.run_step()

    def cut(self) -> None:
        """Push everything collected into the buffer, including segments that are not full."""
        self._actor.finish_streams(goes_on=True)

    def end_incarnation(self) -> dict[str, int]:
        """Cut all streams for good, and return what `restore` needs to begin the next one alike."""
        if self._actor.env_steps:  # a callback may save before the first step
            self._actor.finish_streams()
        state = self.next_incarnation()
        self._incarnation, self._env_steps_before = state["incarnation"], state["env_steps"]
        self._actor = self._started()
        return state

    def next_incarnation(self) -> dict[str, int]:
        """Return what `restore` needs to begin the next incarnation; this one continues."""
        self.table.on_report(self._actor.report())
        return {
            "incarnation": self._incarnation + 1,
            "env_steps": self.env_steps,
            "stored": self._link.stored,
            "episodes": self.table.episodes,
        }

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue after `end_incarnation`; called before the first incarnation begins."""
        self._incarnation, self._env_steps_before = state["incarnation"], state["env_steps"]
        self._link.stored = state["stored"]
        self.table.episodes_before = state["episodes"]
        self._actor = self._started()

    def record(self) -> Record:
        """Return what was stored so far, and the actor's metrics."""
        self.table.on_report(self._actor.report())
        return {"samples_total": float(self._link.stored), **self.table.take()}

    def _started(self) -> Actor:
        peer = Peer(actor_id=_ID, incarnation=self._incarnation)
        return Actor(
            peer,
            self.envs.env,
            self._policy,
            copy.deepcopy(self._processor),  # one serves one incarnation
            Outbox(peer, self._schema, self._segment, self.envs.env.n_envs),
            self._link,
            progress=_NoProgress(),
            changes=self.envs,
        )


class InlineEnvs:
    """The environments of an `InlineActor`, and their replacements."""

    def __init__(
        self,
        env: BatchEnv,
        buffer: ReplayBuffer,
        processor: StepProcessor,
        seed: int,
        change_env: Callable[[Mapping[str, Any]], MakeBatchEnv] | None,
    ) -> None:
        self.env = env
        self.wanted = EnvChange()
        self.change_number = 0
        self._buffer = buffer
        self._processor = processor
        self._seed = seed
        self._change_env = change_env

    def want(self, change: EnvChange) -> None:
        """Rebuild the environments when their next episode begins."""
        if self._change_env is None:
            raise ConfigError(
                "set_env_kwargs needs the function that builds the environments; make the trainer "
                "by build_trainer"
            )
        self.wanted = change

    def change(self, change: EnvChange) -> NewEnv:
        """Close the environments and build those of a change."""
        assert self._change_env is not None  # noqa: S101  # `want` has checked it
        before = self.env.spec, self.env.n_envs
        self.env.close()
        env = make_batch_env(self._change_env(change.kwargs))
        self.env = checked(env)
        if isinstance(self._buffer, ComputesRewards):
            self._buffer.compute_as(getattr(env, "goal_reward", None))
        self.change_number = change.number
        if (self.env.spec, self.env.n_envs) != before:
            raise EnvironmentFault(
                f"environments with {dict(change.kwargs)} differ: {self.env.n_envs} with "
                f"{self.env.spec}, before {before[1]} with {before[0]}; spaces must stay as they "
                "are"
            )
        obs = self.env.reset(derive_seed(self._seed, Role.ENVIRONMENT, _ID, 0, change.number))
        return NewEnv(self.env, obs, copy.deepcopy(self._processor))

    def close(self) -> None:
        """Close the environments."""
        self.env.close()


class _OwnModel(PolicyWrapper):
    """The learning agent as the actor's policy, whose model is always the newest."""

    def sync_model(self, info: ModelInfo) -> None:
        """Do nothing: these are the agent's own parameters."""


class _BufferLink:
    """An actor's link to the replay buffer of the same process."""

    def __init__(self, buffer: ReplayBuffer, envs: InlineEnvs) -> None:
        self._buffer = buffer
        self._envs = envs
        self.stored = 0
        self.version = ModelVersion(0)

    def hello(self, message: Hello, timeout_s: float = 0.0) -> bool:
        return True

    def may_begin(self, seq: int, timeout_s: float = 0.0) -> bool:
        return True

    def send(self, message: Experience | ActorReport | EvaluationReport, timeout_s: float) -> bool:
        if isinstance(message, Experience):
            self.stored += self._buffer.push(message.columns, message.rows)
        return True

    def latest_model(
        self, topic: Topic, newer_than: int, timeout_s: float = 0.0
    ) -> ModelInfo | None:
        return ModelInfo(version=self.version, params={}) if self.version > newer_than else None

    def env_change(self, newer_than: int) -> EnvChange | None:
        return self._envs.wanted if self._envs.wanted.number > newer_than else None

    def stopping(self) -> bool:
        return False

    def drain(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        """Nothing to close."""


class _NoProgress:
    def turn(self, produced: int) -> None:
        """Ignore it: no supervisor watches this actor."""

    def waiting(self, waiting: bool) -> None:
        """Ignore it: no supervisor watches this actor."""

    def finishing(self) -> bool:
        """Return False: no launcher ends this actor."""
        return False
