"""Which library multiplies float32 matrices fastest on this CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

_WIDE = 128  # narrower matrices are done before oneDNN has begun
_LARGE = 2**17  # as large as this, a batch of 32 suffices, and other layers may be narrow


def pick_matmul(
    device: torch.device, *networks: nn.Module, hidden: Sequence[int] = ()
) -> Callable[[], AbstractContextManager[None]]:
    """Return the context in which to multiply float32 matrices on that device.

    They are those of the networks, in batches of any size, or of hidden layers of these widths, in
    batches of some hundred rows.
    """
    # Older torch cannot tell what the CPU is capable of.
    cpu: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    amd = cpu.get("avx512_f") and not cpu.get("amx_bf16") and "AMD" in str(cpu.get("cpu_name"))
    pays = max(hidden, default=0) >= _WIDE or any(map(_is_large, networks))
    return _onednn if device.type == "cpu" and pays and amd else nullcontext


def _is_large(network: nn.Module) -> bool:
    """Tell whether a matrix is worth it, such as the one behind convolutions."""
    matrices = (p for p in network.parameters() if p.ndim in {2, 3})  # one, or one a critic
    return any(p.shape[-2] * p.shape[-1] >= _LARGE for p in matrices)


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
