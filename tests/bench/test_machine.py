"""The fingerprint of a machine, and how two of them differ."""

from __future__ import annotations

import json
import os

from asyncrl.bench.result import HARDWARE, differences, machine, title
from tests.bench.sample_results import MACHINE


def test_machine_is_described_by_what_numbers_depend_on() -> None:
    described = machine()
    assert described["cores"] == os.cpu_count()
    assert 1 <= described["usable_cores"] <= described["cores"]
    assert described["memory_gib"] > 0
    assert isinstance(described["processor"], str), "empty where the system does not tell"
    assert all(described[name] for name in ("platform", "python", "torch", "numpy", "gymnasium"))
    assert set(HARDWARE) <= set(described)


def test_fingerprint_is_the_same_after_json() -> None:
    described = machine()
    assert json.loads(json.dumps(described)) == described


def test_people_read_one_line() -> None:
    assert title(MACHINE) == (
        "a processor, 4 of 8 cores, 31.5 GiB, no GPU, Python 3.11, asyncrl 1, torch 2, numpy 3, "
        "gymnasium 4, pyzmq 5"
    )
    nameless = {**MACHINE, "processor": "", "gpus": ["NVIDIA H200", "NVIDIA H200"]}
    assert title(nameless).startswith(
        "unknown processor, 4 of 8 cores, 31.5 GiB, GPU NVIDIA H200, GPU NVIDIA H200, Python"
    )


def test_differences_are_named_hardware_first() -> None:
    other = {**MACHINE, "torch": "2.1", "cores": 16, "gpus": ["a GPU"]}
    assert differences(MACHINE, other) == ["cores 8 -> 16", "gpus none -> a GPU", "torch 2 -> 2.1"]
    assert differences(MACHINE, dict(MACHINE)) == []


def test_what_an_older_fingerprint_lacks_is_unknown() -> None:
    older = {name: value for name, value in MACHINE.items() if name != "pyzmq"}
    assert differences(older, MACHINE) == ["pyzmq unknown -> 5"]
