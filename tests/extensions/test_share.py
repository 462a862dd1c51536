"""Each learner's share of a run, and of the replays that another number of learners saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.checkpoint.resume import open_checkpoints
from asyncrl.core.errors import ConfigError
from asyncrl.core.replay_buffer import REPLAY
from asyncrl.extensions.ranks.share import check_strategy, share_of
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.replay.files import deal
from asyncrl.replay.uniform import UniformReplay, UniformReplayConfig
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from tests.support.streams import make_outbox, play, schema

SCHEMA = schema(4, 1)
WHOLE = RunConfig(
    actors=4,
    trainer=AsyncTrainerConfig(batch_size=60),
    replay=UniformReplayConfig(capacity=6000),
    limiter=RateLimiterConfig(min_size=101, band_transitions=50),
)


def test_a_share_is_the_whole_divided() -> None:
    second, agents = share_of(
        WHOLE, [DQNConfig(learning_rate=rate) for rate in (0.1, 0.2, 0.3, 0.4)], 1, 2
    )
    assert (second.actors, second.trainer.batch_size, second.replay.capacity) == (2, 30, 3000)
    assert (second.limiter.min_size, second.limiter.band_transitions) == (51, 25)
    assert second.limiter.samples_per_insert == WHOLE.limiter.samples_per_insert
    assert agents == [DQNConfig(learning_rate=0.3), DQNConfig(learning_rate=0.4)]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (replace(WHOLE, actors=3), "actors=3 means the whole run.* among 2 learners.* 2 or 4"),
        (
            replace(WHOLE, trainer=AsyncTrainerConfig(batch_size=61)),
            "trainer.batch_size=61.* 60 or 62",
        ),
        (replace(WHOLE, replay=UniformReplayConfig(capacity=6001)), "replay.capacity=6001"),
        (replace(WHOLE, inference="server"), "inference is 'server', but there are 2 learners"),
        (replace(WHOLE, evaluate=EvaluationConfig(where="inline")), "evaluate.where is inline"),
    ],
)
def test_what_cannot_be_divided_is_refused(config: RunConfig, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        share_of(config, None, 0, 2)


def test_a_strategy_is_refused() -> None:
    check_strategy(None, 2)
    with pytest.raises(ConfigError, match="a strategy was passed"):
        check_strategy(object(), 2)


def filled(n_steps: int) -> UniformReplay:
    """Return a replay with some segments."""
    buffer = UniformReplayConfig(capacity=400).build(SCHEMA, 0)
    _, messages = play([[""] * n_steps], make_outbox(1, SCHEMA.length, SCHEMA.lookahead))
    for message in messages:
        buffer.push(message.columns, message.rows)
    return buffer


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_saved_segment_is_dealt_once(world: int) -> None:
    saved = [filled(48).state(), filled(20).state()]
    whole = len(filled(48)) + len(filled(20))
    shares = [UniformReplayConfig(capacity=400).build(SCHEMA, 0) for _ in range(world)]
    for rank, share in enumerate(shares):
        deal(saved, share, SCHEMA, rank=rank, world=world)
    assert sum(map(len, shares)) == whole
    assert max(map(len, shares)) - min(map(len, shares)) <= SCHEMA.length


def saved_by(world: int, path: Path, step: int = 8) -> None:
    """Save a checkpoint as this number of learners do."""
    ledger = {"produced": 50, "stored": 50, "dropped": 0, "lost": 0}
    for rank in range(world):
        run = {"limiter": {"inserted": 10 + rank}, "ledger": ledger, "env_steps": 70}
        run |= {"episodes": 3, "incarnation": 2}
        groups = {REPLAY: {"rank": np.array([rank]), "step": np.array([step])}}
        if rank == 0:
            groups["agent"] = {"weight": np.ones(2)}
        where = path / f"rank-{rank}" if rank else path
        several = {"ranks": world} if world > 1 else {}
        Checkpointer(where).save(
            str(step), groups, {"run": {**run, **several}, "opt_steps": step, "config": {"seed": 1}}
        )


def opened(path: Path, resume: Any, rank: int, world: int) -> Checkpoint:
    """Return what a learner resumes from."""
    where = path if resume is True else None
    checkpointer, checkpoint = open_checkpoints(
        where, keep=3, resume=resume, config=None, rank=rank, world=world
    )
    if checkpointer:
        checkpointer.unlock()
    assert checkpoint is not None
    return checkpoint


def test_each_learner_resumes_with_its_own_replay_and_the_first_with_the_counters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved_by(2, tmp_path)
    found = []
    for rank in (0, 1):
        checkpoint = opened(tmp_path, True, rank, 2)
        assert checkpoint.groups[REPLAY]["rank"] == [rank]
        assert checkpoint.groups["agent"]["weight"].tolist() == [1.0, 1.0]
        run = checkpoint.meta["run"]
        found.append((run["env_steps"], run["ledger"]["stored"], run["limiter"]["inserted"]))
    assert found == [(70, 50, 10), (0, 0, 11)]
    assert not caplog.records, "without settings, none has changed"


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (2, 3)])
def test_another_number_of_learners_gets_all_replays_to_share(
    before: int, now: int, tmp_path: Path
) -> None:
    saved_by(before, tmp_path)
    checkpoint = opened(tmp_path, True, now - 1, now)
    assert REPLAY not in checkpoint.groups
    shards = [checkpoint.groups[f"{REPLAY}-{rank}"]["rank"].item() for rank in range(before)]
    assert shards == list(range(before))
    assert [one["inserted"] for one in checkpoint.meta["run"]["limiters"]] == [10, 11][:before]


@pytest.mark.parametrize("world", [2, 3])
def test_a_learner_that_failed_continues_with_the_experience_it_saved_before(
    world: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (8, 12, 16):
        saved_by(2, tmp_path, step)
    shards = tmp_path / "rank-1"
    (shards / "16").unlink()
    checkpoint = opened(tmp_path, tmp_path / "16", 1, world)
    assert checkpoint.meta["opt_steps"] == 16
    assert checkpoint.groups[REPLAY if world == 2 else f"{REPLAY}-1"]["step"] == [12]
    assert "rank 1 continues with the experience that it saved at step 12" in caplog.text
    for path in (shards / "12").glob("*"):
        path.write_bytes(b"damaged")
    checkpoint = opened(tmp_path, tmp_path / "16", 1, world)
    assert checkpoint.groups[REPLAY if world == 2 else f"{REPLAY}-1"]["step"] == [8]


def test_what_another_number_of_learners_saved_is_no_part_of_the_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved_by(2, tmp_path, 8)
    saved_by(3, tmp_path, 12)
    (tmp_path / "rank-1" / "12").unlink()
    checkpoint = opened(tmp_path, tmp_path / "12", 1, 3)
    assert REPLAY not in checkpoint.groups
    assert "the experience of rank 1 is lost" in caplog.text
