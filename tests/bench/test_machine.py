"""How two fingerprints of machines differ."""

from __future__ import annotations

from asyncrl.bench.result import differences, title
from tests.bench.sample_results import MACHINE


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
