from __future__ import annotations

import time

from asyncrl.metrics import describe
from asyncrl.system import SystemMeter


def test_busy_process_takes_processor_time_and_memory() -> None:
    meter = SystemMeter()
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    record = meter.record()
    assert record["system/cpu_percent"] > 0.0
    assert record["system/rss_bytes"] > 1e6
    assert all(describe(name) for name in record)
