"""The fingerprint of a machine."""

from __future__ import annotations

import os

from asyncrl.bench.result import HARDWARE
from asyncrl.metrics.machine import machine, processor_of


def test_machine_is_described_by_what_numbers_depend_on() -> None:
    described = machine()
    assert described["cores"] == os.cpu_count()
    assert 1 <= described["usable_cores"] <= described["cores"]
    assert described["memory_gib"] > 0
    assert isinstance(described["processor"], str), "empty where the system does not say"
    assert all(described[name] for name in ("platform", "python", "torch", "numpy", "gymnasium"))
    assert set(HARDWARE) <= set(described)


def test_processors_of_one_name_are_distinguished() -> None:
    core = "cpu family : 6\nmodel : 167\nmodel name : Xeon\nflags : sse avx512f amx_tile"
    assert processor_of(f"{core}\n\n{core}\n") == "Xeon (family 6, model 167, AVX-512, AMX)"
    assert processor_of("processor : 0\nmodel name : Arm") == "Arm"
    assert processor_of("processor : 0\nBogoMIPS : 50") == ""
