"""Torch's threads: those that something else has started may treat small numbers differently."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from asyncrl.core.torch_threads import set_torch_threads, treat_denormals_alike


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
