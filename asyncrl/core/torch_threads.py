"""How many CPU threads torch computes with, if it is loaded. Never loads it, chooses no number."""

from __future__ import annotations

import os
import sys
from typing import Any

_LIMIT = "OMP_NUM_THREADS"


def torch_threads() -> int | None:
    """Return the number of threads; None if torch is not loaded."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else None


def set_torch_threads(count: int) -> None:
    """Let torch, if it is loaded, use this number of threads from the next operation on."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(count)


def share_torch_threads() -> None:
    """Let the calling thread compute with the number of threads that is set; call it first.

    Else its matrix products use all cores, until it asks torch for that number: on two busy cores,
    a small network then takes 20 times as long.
    """
    torch_threads()


def treat_denormals_alike(count: int) -> bool:
    """Whether this number of threads flush denormal numbers if the calling thread does.

    Threads inherit that setting when they start, and torch keeps them. Threads that were not
    started by an update may lack it.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return True
    denormal = torch.full((count << 16,), 1e-39)
    torch.set_num_threads(count)
    before = sys.float_info.min * 0.5 == 0.0
    torch.set_flush_denormal(True)
    flushed = denormal * 1.0
    torch.set_flush_denormal(before)
    torch.set_num_threads(1)
    return not flushed.any()


def is_limited_by_user() -> bool:
    """Whether OMP_NUM_THREADS is set."""
    return _LIMIT in os.environ


def limit_of_user() -> int | None:
    """Return OMP_NUM_THREADS; None if it is not set or not a single number."""
    limit = os.environ.get(_LIMIT, "")
    return max(1, int(limit)) if limit.isdecimal() else None


def are_adaptive(config: object, agent: object) -> bool:
    """Whether this agent's number of threads may change during learning.

    It may if the setting `threads` is `auto` and the agent computes on the CPU.
    """
    is_auto = getattr(config, "threads", None) == "auto"
    return is_auto and str(getattr(agent, "device", "")) == "cpu"
