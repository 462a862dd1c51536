"""Torch's threads: those that something else has started may treat small numbers differently."""

from __future__ import annotations

import ctypes
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from asyncrl.core.torch_threads import set_torch_threads, share_torch_threads, treat_denormals_alike


@pytest.mark.parametrize("started_before", [False, True])
def test_threads_that_flush_denormals_are_distinguished_from_others(started_before: bool) -> None:
    def look() -> bool:
        """Runs in a thread that is new, and so has started no threads of torch yet."""
        if started_before:
            set_torch_threads(2)
            torch.zeros(1 << 18).add_(1.0)
        set_torch_threads(1)
        return treat_denormals_alike(2)

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(1) as one:
            assert one.submit(look).result() != started_before
    finally:
        set_torch_threads(before)


def test_a_thread_that_shares_them_multiplies_matrices_with_as_many() -> None:
    maps = Path("/proc/self/maps")
    found = re.search(r"\S*libgomp\S*", maps.read_text()) if maps.exists() else None
    if found is None:
        pytest.skip("torch has another library of threads here")
    openmp = ctypes.CDLL(found[0])

    def look() -> int:
        """Runs in a thread that is new to torch."""
        share_torch_threads()
        return int(openmp.omp_get_max_threads())

    before = torch.get_num_threads()
    try:
        set_torch_threads(3)
        with ThreadPoolExecutor(1) as one:
            assert one.submit(look).result() == 3
    finally:
        set_torch_threads(before)
