"""What tests of several agents need."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch report a CPU on which oneDNN multiplies faster than MKL."""
    known = {"cpu_name": "AMD EPYC", "avx512_f": True, "amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
