"""Numbers as people read them: `12.3 k`, `2 m 05 s`, `412 MB`. Knows no metrics."""

from __future__ import annotations

import math

_STEPS = ((1e12, "T", 2), (1e9, "G", 2), (1e6, "M", 2), (1e3, "k", 1))


def count(value: float) -> str:
    """Return a number of things, or of things a second: `7`, `2.5`, `812`, `48.1 k`, `1.25 M`."""
    if not math.isfinite(value):
        return str(value)
    for step, letter, digits in _STEPS:
        # From where rounding would show a thousand of the smaller step.
        if abs(value) >= 0.9995 * step:
            return f"{value / step:.{digits}f} {letter}"
    if value == int(value) or abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}"


def measure(value: float) -> str:
    """Return a return, a loss or the like: `3204.5`, `12.35`, `0.0123`, `1.2e-05`."""
    size = abs(value)
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    if size < 0.001:
        return f"{value:.1e}"
    if size >= 99_999.5:
        return count(value)
    digits = 4 if size < 1 else 2 if size < 100 else 1
    return f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units: `12 s`, `2 m 05 s`, `3 h 20 m`."""
    if not math.isfinite(seconds):
        return str(seconds)
    whole = round(seconds)
    for big, small, big_s, small_s in (("d", "h", 86400, 3600), ("h", "m", 3600, 60)):
        if whole >= big_s:
            return f"{whole // big_s} {big} {whole % big_s // small_s:02d} {small}"
    return f"{whole // 60} m {whole % 60:02d} s" if whole >= 100 else f"{whole} s"


def byte_size(value: float) -> str:
    """Return a number of bytes: `412 MB`, `1.3 GB`."""
    return f"{value / 1e9:.1f} GB" if value >= 999.5e6 else f"{value / 1e6:.0f} MB"


def percent(share: float) -> str:
    """Return a share of 1 in whole percent."""
    return f"{share:.0%}".replace("%", " %") if math.isfinite(share) else str(share)
