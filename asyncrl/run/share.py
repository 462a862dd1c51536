"""What this process trains with: the whole run, unless several learners share it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.core.agent import Agent, AgentConfig
from asyncrl.core.ranks import refuse_several
from asyncrl.core.replay_buffer import REPLAY, ReplayBuffer
from asyncrl.learner.actor_source import Actors, ActorSource
from asyncrl.learner.evaluation import EvaluationSite
from asyncrl.run.parts import Opened, Parts, open_run
from asyncrl.run.plan import RunPlan
from asyncrl.run.run_config import RunConfig


class Share:
    """The share of one learner; here the whole run."""

    rank = 0
    """Number of this learner."""

    world = 1
    """Number of learners."""

    evaluation: EvaluationSite | None = None
    """Where models are evaluated, in place of what the settings say."""

    def __init__(self, config: RunConfig, actor_agents: Sequence[AgentConfig] | None) -> None:
        """Take these settings, and these agents of actors."""
        self.config, self.actor_agents = config, actor_agents

    def source(
        self, actors: Actors, agent: Agent, checkpointer: Checkpointer | None
    ) -> ActorSource:
        """Return where the batches come from."""
        return ActorSource(actors, self.config.trainer)

    def open_run(
        self, parts: Parts, plan: RunPlan, buffer: ReplayBuffer, undo: ExitStack, closing: ExitStack
    ) -> Opened:
        """Return what `open_run` does.

        Fill the replay with this learner's share if another number of learners saved it.
        """
        opened = open_run(self.config, parts, undo, closing, rank=self.rank, world=self.world)
        _take_share(opened.checkpoint, buffer, plan, rank=self.rank, world=self.world)
        return opened


@contextmanager
def whole(
    config: RunConfig, actor_agents: Sequence[AgentConfig] | None, _: Parts, /
) -> Iterator[Share]:
    """Yield the whole run; refuse to be one of several learners."""
    refuse_several("a run without learners=several_learners")
    yield Share(config, actor_agents)


def _take_share(
    checkpoint: Checkpoint | None,
    buffer: ReplayBuffer,
    plan: RunPlan,
    *,
    rank: int,
    world: int,
) -> None:
    """Fill a replay with a learner's share of what another number of learners had saved.

    A replay that returns each transition once stays empty: what it held is of an old model.
    """
    if checkpoint is None or buffer.once:
        return
    names = sorted(name for name in checkpoint.groups if name.startswith(f"{REPLAY}-"))
    if not names:
        return
    from asyncrl.replay.files import deal  # noqa: PLC0415  # another number of learners

    deal([checkpoint.groups[name] for name in names], buffer, plan.schema, rank=rank, world=world)
    saved = checkpoint.meta["run"]["limiters"]
    share = {name: sum(one[name] for one in saved) // world for name in saved[0]}
    plan.limiter.resume_at({**share, "samples_per_insert": saved[0]["samples_per_insert"]})
