"""Which library multiplies float32 matrices fastest on this CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

__all__ = ["pick_matmul"]

_WIDE = 128  # narrower matrices are done before oneDNN has begun


def pick_matmul(device: torch.device, width: int) -> Callable[[], AbstractContextManager[None]]:
    """Return the context in which to multiply float32 matrices of that width on that device."""
    # Older torch cannot tell what the CPU is capable of.
    cpu: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    amd = cpu.get("avx512_f") and not cpu.get("amx_bf16") and "AMD" in str(cpu.get("cpu_name"))
    return _onednn if device.type == "cpu" and width >= _WIDE and amd else nullcontext


@contextmanager
def _onednn() -> Iterator[None]:
    """Let oneDNN multiply, not MKL, which on AMD leaves AVX-512 unused and takes twice as long.

    Torch turns to oneDNN for float32 only where bfloat16 would do as well. On a CPU without AMX,
    oneDNN computes that in float32 all the same.
    """
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # made on import
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before
