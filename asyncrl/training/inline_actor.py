"""An actor in the learner's own thread, which pushes its rows straight into the replay buffer.

Each incarnation has its own seed and random streams, as in restarted actor processes: so it depends
on nothing before it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from asyncrl.actor.actor import Actor
from asyncrl.actor.outbox import Outbox
from asyncrl.actor.step_processor import StepProcessor
from asyncrl.core.agent import Policy, PolicyWrapper
from asyncrl.core.env import BatchEnv
from asyncrl.core.messages import ActorReport, EvaluationReport, Experience, Hello, ModelInfo, Peer
from asyncrl.core.recorder import Record
from asyncrl.core.replay_buffer import ReplayBuffer
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.core.segment import SegmentConfig, SegmentSchema
from asyncrl.core.transport import Topic
from asyncrl.core.types import ActorId, ModelVersion
from asyncrl.learner.actor_table import ActorTable

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
    ) -> None:
        self._policy = _OwnModel(policy)
        self._env = env
        self._link = _BufferLink(buffer)
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
        """Begin new episodes in all environments."""
        # The first life has the seed that it had before there were others.
        life = (_ID, self._incarnation) if self._incarnation else (_ID,)
        self._actor.start(derive_seed(self._seed, Role.ENVIRONMENT, *life))

    def run_step(self) -> None:
        """Take one step in all environments."""
        self._actor.run_step()

    def cut(self) -> None:
        """Push everything collected into the buffer, including segments that are not full."""
        self._actor.finish_streams(goes_on=True)

    def end_incarnation(self) -> dict[str, int]:
        """Cut all streams for good, and return what `restore` needs to begin the same next life."""
        self._actor.finish_streams()
        self.table.on_report(self._actor.report())
        self._env_steps_before = self.env_steps
        self._incarnation += 1
        self._actor = self._started()
        return {
            "incarnation": self._incarnation,
            "env_steps": self._env_steps_before,
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
            self._env,
            self._policy,
            copy.deepcopy(self._processor),  # one serves one life
            Outbox(peer, self._schema, self._segment, self._env.n_envs),
            self._link,
            progress=_NoProgress(),
        )


class _OwnModel(PolicyWrapper):
    """The learning agent as the actor's policy, whose model is always the newest."""

    def sync_model(self, info: ModelInfo) -> None:
        """Do nothing: these are the agent's own parameters."""


class _BufferLink:
    """An actor's link to the replay buffer of the same process."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
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
