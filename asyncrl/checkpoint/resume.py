"""What a run can go on from, and what is different now."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Literal

from asyncrl.checkpoint.checkpoint import Checkpoint, Checkpointer
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.replay_buffer import REPLAY

logger = logging.getLogger(__name__)

Resume = bool | Literal["without replay"]
"""Whether to go on from the newest whole checkpoint, and if so, whether to load its replay."""

_MISSING = "nothing"


def load_to_resume(checkpoint_dir: Path, config: Mapping[str, object] | None = None) -> Checkpoint:
    """Return the newest whole checkpoint of a run, and warn of settings that it did not have.

    Args:
        checkpoint_dir: Where the run has saved them.
        config: Plain values of the settings to go on with, as they are given to recorders.
    """
    checkpoint = Checkpointer(checkpoint_dir).load_latest(mapped=[REPLAY])
    if "run" not in checkpoint.meta:
        raise CheckpointError(
            f"the newest checkpoint in {checkpoint_dir} does not say how far its run had come, so "
            "nothing can go on from it; its model can still be evaluated"
        )
    before = checkpoint.meta.get("config")
    if changed := differences(before, plain_config(config or {})) if before else []:
        logger.warning("resumed with other settings than before: %s", "; ".join(changed))
    return checkpoint


def open_checkpoints(
    checkpoint_dir: str | PathLike[str] | None,
    *,
    keep: int,
    resume: Resume,
    config: Mapping[str, object] | None,
) -> tuple[Checkpointer | None, Checkpoint | None]:
    """Return who saves to a directory, now locked, and what to go on from if that is wanted.

    `keep` is the number of checkpoints that are kept, 0 for all. Without `resume`, a directory with
    checkpoints is refused: by their numbers, those of an earlier run that had come further would be
    kept in place of a new run's, and taken for its newest, and its best model would be replaced.
    """
    if resume not in (True, False, "without replay"):
        raise ConfigError(f'resume must be True, False or "without replay", got {resume!r:.80}')
    if checkpoint_dir is None:
        if resume:
            raise ConfigError("resume=True needs a checkpoint_dir to go on from")
        return None, None
    if not isinstance(checkpoint_dir, str | PathLike):
        raise ConfigError(
            f"checkpoint_dir must be the path of a directory, got {checkpoint_dir!r:.80}; give for "
            'instance checkpoint_dir="runs/mine"'
        )
    checkpoint_dir = Path(checkpoint_dir)
    checkpointer = Checkpointer(checkpoint_dir, keep_last=keep)
    if resume and not checkpoint_dir.is_dir():
        load_to_resume(checkpoint_dir)  # says that there is nothing, and makes no directory
    checkpointer.lock()  # first: what another run is still writing is nothing to go on from
    try:
        if resume:
            checkpoint = load_to_resume(checkpoint_dir, config)
            return checkpointer, checkpoint if resume is True else _without_replay(checkpoint)
        _check_unused(checkpointer, checkpoint_dir)
    except BaseException:
        checkpointer.unlock()
        raise
    return checkpointer, None


def _without_replay(checkpoint: Checkpoint) -> Checkpoint:
    groups = {name: group for name, group in checkpoint.groups.items() if name != REPLAY}
    return replace(checkpoint, groups=groups)


def _check_unused(checkpointer: Checkpointer, checkpoint_dir: Path) -> None:
    if there := checkpointer.latest():
        raise ConfigError(
            f"{checkpoint_dir} holds checkpoints of an earlier run, up to {there}, and a new run's "
            "must not be mixed with them; give another directory, or go on with that run (resume)"
        )
    if names := checkpointer.names():
        raise ConfigError(
            f"{checkpoint_dir} holds the checkpoint {', '.join(names)} of an earlier run, which a "
            "new run's would replace; give another directory, or move it away"
        )


def first_incarnation(checkpoint: Checkpoint | None) -> int:
    """Return the number of the first lives that actors may live.

    Seeds depend on it, so no life is lived twice.
    """
    if not checkpoint:
        return 0
    with going_on_from(checkpoint):
        return checkpoint.count("run.incarnation")


def going_on_from(checkpoint: Checkpoint) -> AbstractContextManager[None]:
    """Have errors about what a checkpoint holds tell that nothing can go on from it, and why."""
    return checkpoint.naming(
        "go on from",
        "Go on with the settings, the kind of run and the version of asyncrl that saved it, or "
        "begin a new run",
    )


def plain_config(config: Mapping[str, object]) -> dict[str, object]:
    """Return settings as they come back from a checkpoint: lists for tuples, text for paths.

    Numbers that JSON has no word for, as infinity, are text, too: checkpoints hold none of them.
    """
    text = json.dumps(dict(config), default=str)
    plain: dict[str, object] = json.loads(text, parse_constant=str)
    return plain


def differences(before: object, now: object, name: str = "") -> list[str]:
    """Say which plain values are not what they were, each as `name: before -> now`."""
    return list(_differences(before, now, name))


def _differences(before: object, now: object, name: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            inner = f"{name}.{key}" if name else key
            yield from _differences(before.get(key, _MISSING), now.get(key, _MISSING), inner)
    elif before != now:
        yield f"{name}: {before} -> {now}"
