"""What a run with `record_order` says about itself, so that `replayed.py` can build it again."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from asyncrl.checkpoint.resume import Resume, plain_config
from asyncrl.core.errors import ConfigError
from asyncrl.core.measured import choices
from asyncrl.metrics.machine import machine
from asyncrl.training.describe_env import plain_description
from asyncrl.training.plan import RunPlan

ORDER_FILE = "order"
"""Name of the file in the directory of a run."""


def check_recordable(path: str | PathLike[str] | None, *, resume: Resume) -> None:
    """Raise `ConfigError` if this cannot be the file of a run's order."""
    if path is None:
        return
    if not isinstance(path, str | PathLike):
        raise ConfigError(
            f"record_order must be the path of a new file, got {path!r:.80}; pass for instance "
            'record_order="runs/mine/order"'
        )
    if resume:
        raise ConfigError(
            "the order of a resumed run cannot be recorded, because a replay begins with a new "
            "agent and an empty replay buffer; resume without record_order, or start a new run"
        )


def about_run(plan: RunPlan, run_config: Mapping[str, object] | None) -> dict[str, Any]:
    """Return what a replay needs beside the order, as plain values, once all parts are built."""
    return {
        "seed": plan.seed,
        "schema": plan.schema.hash(),
        "env": plain_description(plan.seen),
        "config": plain_config(run_config) if run_config else None,
        "machine": machine(),
        "choices": dict(choices()),
    }
