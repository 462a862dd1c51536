"""Settings of a run's services in one line."""

from __future__ import annotations

from typing import Any

from asyncrl.learner.run_services import (
    EvaluationTimingConfig,
    RecordConfig,
    RunServicesConfig,
    SaveConfig,
)


def services_config(**settings: Any) -> RunServicesConfig:
    """Return what names like `save_interval_opt_steps`, of a section and a setting, stand for."""
    sections: dict[str, dict[str, Any]] = {"evaluate": {}, "record": {}, "save": {}}
    for name, value in settings.items():
        section, _, setting = name.partition("_")
        sections[section][setting] = value
    return RunServicesConfig(
        evaluate=EvaluationTimingConfig(**sections["evaluate"]),
        record=RecordConfig(**sections["record"]),
        save=SaveConfig(**sections["save"]),
    )
