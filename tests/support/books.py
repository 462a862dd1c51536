"""Settings of a bookkeeper in one line."""

from __future__ import annotations

from typing import Any

from asyncrl.learner.bookkeeper import (
    BookkeepingConfig,
    EvaluationTimingConfig,
    RecordConfig,
    SaveConfig,
)


def bookkeeping(**settings: Any) -> BookkeepingConfig:
    """Return what names like `save_interval_opt_steps`, of a section and a setting, stand for."""
    sections: dict[str, dict[str, Any]] = {"evaluate": {}, "record": {}, "save": {}}
    for name, value in settings.items():
        section, _, setting = name.partition("_")
        sections[section][setting] = value
    return BookkeepingConfig(
        evaluate=EvaluationTimingConfig(**sections["evaluate"]),
        record=RecordConfig(**sections["record"]),
        save=SaveConfig(**sections["save"]),
    )
