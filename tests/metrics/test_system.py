"""Use of processors and memory, by this process, its children and the whole machine."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from asyncrl.metrics import system
from asyncrl.metrics.limits import ControlGroups
from asyncrl.metrics.metrics import describe
from asyncrl.metrics.system import Cores, CoreTimes, SystemMeter, find_gpu
from tests.metrics.test_limits import Machine, cpu_v2, v2


def work(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


@pytest.mark.behaviour(number=59)
def test_busy_process_takes_processor_time_and_memory() -> None:
    meter = SystemMeter()
    work(0.2)
    record = meter.record()
    assert record["system/cpu_percent"] > 0.0
    assert record["system/rss_bytes"] > 1e6
    assert 0.0 < record["system/machine_cpu_percent"] <= 100.0
    assert record["system/available_bytes"] > 1e6
    assert all(describe(name) for name in record)


def test_use_is_since_the_last_record_and_in_the_mean_since_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, own_s, busy_s = 100.0, 7.0, 50.0
    own = lambda _: SimpleNamespace(user=5.0, system=own_s - 5.0)  # noqa: E731
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: [])
    monkeypatch.setattr(psutil.Process, "cpu_times", own)
    monkeypatch.setattr(Cores, "times", lambda _, clock_s: CoreTimes(busy_s, 2 * clock_s))
    meter = SystemMeter(clock=lambda: now_s)
    now_s, own_s, busy_s = 101.0, 7.2, 51.0
    first = meter.record()
    assert first["system/cpu_percent"] == pytest.approx(20.0)
    assert first["system/machine_cpu_percent"] == pytest.approx(50.0)
    now_s = 102.0
    second = meter.record()
    assert (second["system/cpu_percent"], second["system/machine_cpu_percent"]) == (0.0, 0.0)
    usage = meter.usage()
    assert (usage.cpu_percent, usage.machine_cpu_percent) == pytest.approx((10.0, 25.0))


class Child:
    """A process that has taken as much as a test says."""

    pid, used_s = 7, 5.0

    def oneshot(self) -> nullcontext[None]:
        return nullcontext()

    def cpu_times(self) -> SimpleNamespace:
        return SimpleNamespace(user=self.used_s, system=0.0)

    def memory_info(self) -> SimpleNamespace:
        return SimpleNamespace(rss=2_000_000)


def test_new_actors_are_searched_for_at_once_and_counted_with_what_they_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, child, running = 100.0, Child(), list[Child]()
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: list(running))
    meter = SystemMeter(clock=lambda: now_s)
    one = {"actor/0/restarts": 0.0}
    running.append(child)
    now_s += 1.0
    assert "system/children_rss_bytes" not in meter.record(among={}), "not looked for yet"
    found = meter.record(among=one)
    assert found["system/children_rss_bytes"] == 2e6
    assert "system/children_cpu_percent" not in found, "since when, is not known"
    now_s += 1.0
    child.used_s += 0.5
    record = meter.record(among=one)
    assert record["system/children_cpu_percent"] == pytest.approx(50.0)
    assert (meter.usage().children_cpu_percent or 0.0) > 0.0
    assert all(describe(name) for name in record)
    running.clear()
    now_s += 10.0
    assert "system/children_rss_bytes" not in meter.record(among=one), "it has ended"


def test_throttling_is_that_since_the_last_record_and_since_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def write(periods: int, throttled: int) -> None:
        files = cpu_v2("1000 100000", periods, throttled)
        Machine(mounts=(v2(),), groups=("0::/",), files={"": files}).write(tmp_path)

    write(100, 50)
    monkeypatch.setattr(system, "ControlGroups", partial(ControlGroups, tmp_path))
    meter = SystemMeter()
    write(110, 55)
    assert meter.record()["system/throttled_percent"] == 50.0
    assert meter.record()["system/throttled_percent"] == 0.0, "no period has passed"
    write(120, 65)
    record = meter.record()
    assert record["system/throttled_percent"] == 100.0
    assert meter.usage().throttled_percent == 75.0
    assert all(describe(name) for name in record)


class FakeNvml(SimpleNamespace):
    """One device, which may refuse to answer."""

    NVMLError = LookupError

    def __init__(self, *, silent: bool = False) -> None:
        def utilization(_: str) -> Any:
            if silent:
                raise LookupError
            return SimpleNamespace(gpu=37)

        super().__init__(
            nvmlInit=lambda: None,
            nvmlDeviceGetHandleByIndex=lambda index: f"number {index}",
            nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
            nvmlDeviceGetMemoryInfo=self.memory,
            nvmlDeviceGetUtilizationRates=utilization,
        )

    def memory(self, handle: str) -> Any:
        self.asked_for = handle
        return SimpleNamespace(used=5_000)


@pytest.mark.parametrize(("visible", "device"), [("2,3", "number 2"), ("GPU-8a-2,1", "GPU-8a-2")])
def test_gpu_is_the_first_that_is_visible(
    visible: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    record = SystemMeter().record()
    assert nvml.asked_for == device
    assert (record["system/gpu_percent"], record["system/gpu_memory_bytes"]) == (37.0, 5_000.0)
    assert all(describe(name) for name in record)


def test_gpu_that_does_not_report_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(silent=True))  # type: ignore[arg-type]
    assert [name for name in SystemMeter().record() if "gpu" in name] == []


def test_there_is_no_gpu_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert find_gpu() is None
