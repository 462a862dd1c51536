"""What a run with `record_order` says about itself, so that `replayed.py` can build it again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from asyncrl.checkpoint.checkpoint import Checkpoint
from asyncrl.checkpoint.resume import plain_config
from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.measured import choices
from asyncrl.core.replay_buffer import REPLAY
from asyncrl.learner.order import Order, RecordedOrder
from asyncrl.learner.order_log import part_of
from asyncrl.metrics.machine import machine
from asyncrl.training.describe_env import plain_description
from asyncrl.training.plan import RunPlan

ORDER_FILE = "order"
"""Name of the file in the directory of a run."""


def order_of(
    path: str | PathLike[str] | None,
    plan: RunPlan,
    run_config: Mapping[str, object] | None,
    checkpoint: Checkpoint | None,
    interrupter: Interrupter,
) -> Order:
    """Return what keeps the order of a run, which begins or resumes from a checkpoint."""
    if path is None:
        return Order()
    path = Path(path).absolute()  # the working directory may change
    after = None
    if checkpoint is not None:
        after = checkpoint.meta["run"].get("order")
        if after is None:
            raise ConfigError(
                f"checkpoint {checkpoint.path} is of a run whose order was not recorded, so "
                "the resumed run cannot record its own either; resume without record_order, and "
                f"move {path} away if it is there"
            )
        before = part_of(path, after["part"])
        if not before.exists():
            raise ConfigError(
                f"the order up to checkpoint {checkpoint.path} would be in {before}, which does "
                "not exist, so what follows could not be replayed: a run that branches off into "
                "another directory cannot record its order; resume without record_order, and move "
                f"{path} away if it is there"
            )
        after = {**after, "replay": REPLAY in checkpoint.groups}
    about = partial(about_run, plan, run_config)
    return RecordedOrder(path, plan.schema, about, interrupter, after=after)


def check_order_path(path: str | PathLike[str] | None) -> None:
    """Raise `ConfigError` if this is no path."""
    if path is not None and not isinstance(path, str | PathLike):
        raise ConfigError(
            f"record_order must be the path of a file, got {path!r:.80}; pass for instance "
            'record_order="runs/mine/order"'
        )


def about_run(plan: RunPlan, run_config: Mapping[str, object] | None) -> dict[str, Any]:
    """Return what a replay needs beside the order, as plain values, once all parts are built."""
    return {
        "seed": plan.seed,
        "schema": plan.schema.hash(),
        "env": plain_description(plan.seen),
        "config": plain_config(run_config or {}),
        "machine": machine(),
        "choices": dict(choices()),
    }
