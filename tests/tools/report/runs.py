"""Directories such as runs leave, without a run."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from asyncrl.run.run_config import RunConfig
from asyncrl.run.yaml_file import save_yaml


def made_run(
    path: Path,
    config: RunConfig,
    *,
    records: list[dict[str, float]] | None = None,
    summary: dict[str, Any] | None = None,
    began: str = "2026-11-23T12:00:00+0000",
    pid: int = 2**30,
    host: str = "",
    agent: str = "dqn",
) -> Path:
    """Make the directory of a run that was started once; by default its process is gone."""
    (path / "checkpoints").mkdir(parents=True)
    save_yaml(config, path / "config.yaml")
    start = {"time": began, "agent": agent, "pid": pid, "host": host or socket.gethostname()}
    (path / "run.json").write_text(json.dumps({"starts": [start]}))
    lines = "".join(json.dumps(record) + "\n" for record in records or [])
    (path / "metrics.jsonl").write_text(lines)
    if summary is not None:
        (path / "summary.json").write_text(json.dumps({**summary, "starts": [start]}))
    return path
