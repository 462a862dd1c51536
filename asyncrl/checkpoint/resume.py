"""Loads what a run resumes from, and reports changed settings. Does not know how a run trains."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from asyncrl.checkpoint.checkpoint import PASSING, Checkpoint, Checkpointer
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.replay_buffer import REPLAY
from asyncrl.core.types import Arrays

logger = logging.getLogger(__name__)

Resume = bool | Literal["without replay"] | PathLike[str]
"""Whether to resume from the newest complete checkpoint, and if so, whether to load its replay. Or
the path of a checkpoint from which a run in another directory branches off."""

_MISSING = "nothing"


def load_to_resume(checkpoint_dir: Path, config: Mapping[str, object] | None = None) -> Checkpoint:
    """Return the newest complete checkpoint of a run; warn about settings that have changed.

    Args:
        checkpoint_dir: Where the run has saved them.
        config: Plain values of the new settings, as recorders receive them.
    """
    checkpoint = Checkpointer(checkpoint_dir).load_latest(mapped=[REPLAY])
    return _checked(checkpoint, f"the newest checkpoint in {checkpoint_dir}", config)


def load_to_branch(path: Path, config: Mapping[str, object] | None = None) -> Checkpoint:
    """Return a chosen checkpoint of a run, as `load_to_resume` does."""
    checkpoint = Checkpointer(path.parent).load(path.name, mapped=[REPLAY])
    return _checked(checkpoint, f"the checkpoint {path}", config)


def _checked(
    checkpoint: Checkpoint, called: str, config: Mapping[str, object] | None
) -> Checkpoint:
    if "run" not in checkpoint.meta:
        raise CheckpointError(
            f"{called} is a model alone, without optimizer and counters, so it cannot be resumed "
            f"from; it can be evaluated and exported. {_nearest(checkpoint)}"
        )
    before = checkpoint.meta.get("config")
    if changed := differences(before, plain_config(config)) if config and before else []:
        logger.warning("resumed with changed settings: %s", "; ".join(changed))
    return checkpoint


def _nearest(checkpoint: Checkpoint) -> str:
    """Return what to resume from instead of a model."""
    names = Checkpointer(checkpoint.path.parent).names()
    steps = checkpoint.meta.get("opt_steps", 0)
    nearest = min(
        map(int, filter(str.isdecimal, names)), key=lambda n: abs(n - steps), default=None
    )
    if nearest is None:
        return "Checkpoints with a number contain all of it"
    return f"The nearest one to it, of optimisation step {steps}, is {nearest}"


def open_checkpoints(
    checkpoint_dir: str | PathLike[str] | None,
    *,
    keep: int,
    resume: Resume,
    config: Mapping[str, object] | None,
    rank: int = 0,
    world: int = 1,
) -> tuple[Checkpointer | None, Checkpoint | None]:
    """Return a locked checkpointer for a directory, and the checkpoint to resume from, if wanted.

    Of several learners, rank 0 saves the agent, the counters and its replay there, and each of the
    others saves its replay under the same number in a directory within it, see `shard_dir`.

    `keep` is the number of checkpoints to keep, 0 for all. Without `resume`, a directory with
    checkpoints is refused. Otherwise checkpoints of a longer earlier run would have higher numbers:
    they would be kept instead of the new run's, and loaded as its newest. Its best model would be
    overwritten.
    """
    branches = isinstance(resume, PathLike)
    if not branches and resume not in (True, False, "without replay"):
        raise ConfigError(
            'resume must be True, False, "without replay" or the path of a checkpoint, got '
            f"{resume!r:.80}"
        )
    if checkpoint_dir is None:
        if resume and not branches:
            raise ConfigError("resume=True needs a checkpoint_dir to resume from")
        return None, _opened(None, resume, config, rank, world)
    if not isinstance(checkpoint_dir, str | PathLike):
        raise ConfigError(
            f"checkpoint_dir must be the path of a directory, got {checkpoint_dir!r:.80}; pass for "
            'instance checkpoint_dir="runs/mine"'
        )
    checkpoint_dir = Path(checkpoint_dir).absolute()  # the working directory may change
    own_dir = shard_dir(checkpoint_dir, rank)
    checkpointer = (Shards if rank else Checkpointer)(own_dir, keep_last=keep)
    if resume and not branches and not checkpoint_dir.is_dir():
        load_to_resume(checkpoint_dir)  # raises if there is nothing; creates no directory
    checkpointer.lock()  # first: never resume from what another run is writing
    try:
        if branches or not resume:
            _check_unused(checkpointer, own_dir)
        return checkpointer, _opened(checkpoint_dir, resume, config, rank, world)
    except BaseException:
        checkpointer.unlock()
        raise


class Shards(Checkpointer):
    """The checkpoints of a rank other than 0: its replay, whenever rank 0 saves."""

    def __init__(self, directory: Path, keep_last: int = 0) -> None:
        """See `Checkpointer`."""
        super().__init__(directory, keep_last)
        self._wanted: dict[str, bool] = {}

    def expect(self, name: str, *, passing: bool) -> None:
        """Save under this name when asked to; `passing` as in rank 0."""
        self._wanted[name] = passing  # kept: the saver may write it later, or again

    def save(self, name: str, groups: Mapping[str, Arrays], meta: Mapping[str, Any]) -> Path:
        """Save the groups that rank 0 does not have, if it has saved under this name, too."""
        passing = self._wanted.get(name)
        if passing is None:
            return self._directory / name
        own = {group: arrays for group, arrays in groups.items() if group not in _OF_RANK_0}
        meta = {key: value for key, value in meta.items() if key != PASSING}
        return super().save(name, own, {**meta, PASSING: True} if passing else meta)


_OF_RANK_0 = ("model", "agent")


def shard_dir(checkpoint_dir: Path, rank: int) -> Path:
    """Return where one of several learners saves its replay."""
    return checkpoint_dir / f"rank-{rank}" if rank else checkpoint_dir


def _opened(
    checkpoint_dir: Path | None,
    resume: Resume,
    config: Mapping[str, object] | None,
    rank: int,
    world: int,
) -> Checkpoint | None:
    """Return the checkpoint to resume from, None for a new run."""
    config = None if rank else config  # rank 0 warns of changes
    if isinstance(resume, PathLike):
        checkpoint = load_to_branch(Path(resume), config)
    elif not resume or checkpoint_dir is None:
        return None
    else:
        checkpoint = load_to_resume(checkpoint_dir, config)
    if resume == "without replay":
        checkpoint = _without_replay(checkpoint)
    return with_shard(checkpoint, rank, world)


def with_shard(checkpoint: Checkpoint, rank: int, world: int) -> Checkpoint:
    """Return the checkpoint as one of `world` learners resumes from it.

    Rank 0 continues the counters of the run. Each rank continues with its own replay; if there were
    more or fewer of them, each gets those of all, as `replay-0`, `replay-1` and so on, to take its
    share, see `run/share.py`.
    """
    run = checkpoint.meta.get("run", {})
    saved = _learners(checkpoint)
    groups = {name: group for name, group in checkpoint.groups.items() if name != REPLAY}
    if rank:
        none = {"env_steps": 0, "episodes": 0, "limiter": {}}
        run = {**run, **none, "ledger": dict.fromkeys(run.get("ledger", ()), 0)}
    if REPLAY in checkpoint.groups and saved == world:
        shard = _shard(checkpoint, rank)
        groups |= {name: shard.groups[name] for name in shard.groups if name == REPLAY}
        run = {**run, "limiter": shard.meta.get("run", {}).get("limiter", {})}
    elif REPLAY in checkpoint.groups:
        shards = [_shard(checkpoint, other) for other in range(saved)]
        held = [shard for shard in shards if REPLAY in shard.groups]
        groups |= {f"{REPLAY}-{i}": shard.groups[REPLAY] for i, shard in enumerate(held)}
        run = {**run, "limiter": {}, "limiters": [shard.meta["run"]["limiter"] for shard in held]}
    return replace(checkpoint, groups=groups, meta={**checkpoint.meta, "run": run})


def _shard(checkpoint: Checkpoint, rank: int) -> Checkpoint:
    """Return what a rank has saved at the same step, or before if that is not complete.

    A rank that failed has not saved at the step at which the others did. What another number of
    learners has saved is not a part of the same whole.
    """
    if not rank:
        return checkpoint
    shards, name = Checkpointer(shard_dir(checkpoint.path.parent, rank)), checkpoint.path.name
    numbers = filter(str.isdecimal, shards.names())
    earlier = [n for n in numbers if name.isdecimal() and int(n) < int(name)]
    first: CheckpointError | None = None
    for there in (name, *reversed(earlier)):
        try:
            shard = shards.load(there, mapped=[REPLAY])
        except CheckpointError as error:
            first = first or error
            continue
        if first:
            if REPLAY not in shard.groups or _learners(shard) != _learners(checkpoint):
                break
            logger.warning(
                "%s; rank %d continues with the experience that it saved at step %s",
                *(first, rank, there),
            )
        return shard
    logger.warning("%s; the experience of rank %d is lost", first, rank)
    return Checkpoint({}, {})


def _learners(checkpoint: Checkpoint) -> int:
    """Return how many learners have saved it."""
    return int(checkpoint.meta.get("run", {}).get("ranks", 1))


def _without_replay(checkpoint: Checkpoint) -> Checkpoint:
    groups = {name: group for name, group in checkpoint.groups.items() if name != REPLAY}
    return replace(checkpoint, groups=groups)


def _check_unused(checkpointer: Checkpointer, checkpoint_dir: Path) -> None:
    if there := checkpointer.latest():
        raise ConfigError(
            f"{checkpoint_dir} contains checkpoints of an earlier run, up to {there}, and a new "
            "run must not mix its own with them; use another directory, or resume that run"
        )
    if names := checkpointer.names():
        raise ConfigError(
            f"{checkpoint_dir} contains the checkpoint {', '.join(names)} of an earlier run, which "
            "a new run would overwrite; use another directory, or move it away"
        )


def first_incarnation(checkpoint: Checkpoint | None) -> int:
    """Return the first incarnation of a run's actors.

    Random seeds depend on it, so no incarnation number is used twice.
    """
    if not checkpoint:
        return 0
    with naming_resumed(checkpoint):
        return checkpoint.count("run.incarnation")


def naming_resumed(checkpoint: Checkpoint) -> AbstractContextManager[None]:
    """Add to errors about a checkpoint's content that it cannot be resumed from, and why."""
    return checkpoint.naming(
        "resume from",
        "Resume with the settings, the kind of run and the version of asyncrl that saved it, or "
        "start a new run",
    )


def plain_config(config: Mapping[str, object]) -> dict[str, object]:
    """Return settings as a checkpoint restores them: lists for tuples, text for paths.

    Numbers that JSON cannot represent, such as infinity, become text.
    """
    text = json.dumps(dict(config), default=str)
    plain: dict[str, object] = json.loads(text, parse_constant=str)
    return plain


def differences(before: object, now: object, name: str = "") -> list[str]:
    """Return the plain values that have changed, each as `name: before -> now`."""
    return list(_differences(before, now, name))


def _differences(before: object, now: object, name: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            inner = f"{name}.{key}" if name else key
            yield from _differences(before.get(key, _MISSING), now.get(key, _MISSING), inner)
    elif before != now:
        yield f"{name}: {before} -> {now}"
