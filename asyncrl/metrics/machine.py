"""The hardware and versions that a run or a measurement depends on. Does not know settings."""

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
    """Return the fingerprint of this machine as plain values."""
    return {
        "processor": processor(),
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
    except PackageNotFoundError:  # on the path without being installed
        return None


_MODEL = {"family": "cpu family", "model": "model"}
_VECTORS = {"avx512f": "AVX-512", "avx512_bf16": "BF16", "amx_tile": "AMX"}
"""Flag of Linux -> instructions that change how fast matrices are multiplied."""


def processor() -> str:
    """Return name, family, model and vector instructions: clouds give one name to many models."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    return processor_of(text) or platform.processor()


def processor_of(cpuinfo: str) -> str:
    """Describe the first processor of Linux's `/proc/cpuinfo`; empty if it names none."""
    lines = [line.partition(":") for line in cpuinfo.split("\n\n", maxsplit=1)[0].splitlines()]
    found = {name.strip(): value.strip() for name, _, value in lines}
    if "model name" not in found:
        return ""
    model = [f"{what} {found[key]}" for what, key in _MODEL.items() if key in found]
    flags = found.get("flags", "").split()
    details = [*model, *(words for flag, words in _VECTORS.items() if flag in flags)]
    return f"{found['model name']} ({', '.join(details)})" if details else found["model name"]


def _gpus() -> list[str]:
    """Return the models of NVIDIA's GPUs, as the driver lists them under Linux."""
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
