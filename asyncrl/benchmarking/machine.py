"""What numbers depend on besides the code: hardware and versions. Measures nothing."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

HARDWARE = ("processor", "cores", "usable_cores", "gpus")
"""What makes two machines different ones; the rest are versions, and memory."""

_PACKAGES = ("asyncrl", "torch", "numpy", "gymnasium", "pyzmq")


def machine() -> dict[str, Any]:
    """Return the fingerprint of this machine, as plain values."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": _usable_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": _gpus(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
    }


def title(described: Mapping[str, Any]) -> str:
    """Return a fingerprint in one line, for people."""
    cores = f"{described['usable_cores']} of {described['cores']} cores"
    gpus = [f"GPU {name}" for name in described["gpus"]] or ["no GPU"]
    versions = [
        f"Python {described['python']}",
        *(f"{name} {described[name]}" for name in _PACKAGES),
    ]
    hardware = [
        described["processor"] or "unknown processor",
        cores,
        f"{described['memory_gib']} GiB",
    ]
    return ", ".join([*hardware, *gpus, *versions])


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Say what differs between two fingerprints, hardware first."""
    names = [*HARDWARE, *(name for name in now if name not in HARDWARE)]
    return [
        f"{name} {_shown(before.get(name))} -> {_shown(now.get(name))}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "unknown" if value is None else str(value)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    except OSError:
        models = []
    return models[0] if models else platform.processor()


def _usable_cores() -> int:
    """Return how many cores this process may run on, where the system tells."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _gpus() -> list[str]:
    """Return the models of NVIDIA's GPUs, as the driver lists them under Linux."""
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
