"""What a run or a measurement depends on beside its settings: hardware and versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from asyncrl.metrics.system import Cores

PACKAGES = ("asyncrl", "torch", "numpy", "gymnasium", "pyzmq")


def machine() -> dict[str, Any]:
    """Return the fingerprint of this machine, as plain values."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": round(Cores().share, 2),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": _gpus(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # it is on the path without having been installed
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    except OSError:
        models = []
    return models[0] if models else platform.processor()


def _gpus() -> list[str]:
    """Return the models of NVIDIA's GPUs, as the driver lists them under Linux."""
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
