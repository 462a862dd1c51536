"""What tests of several agents need."""

from __future__ import annotations

import pytest

from asyncrl.agents.parts import accelerated


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for a CPU on which oneDNN multiplies faster than MKL."""
    monkeypatch.setattr(accelerated, "_onednn_is_better", lambda: True)
