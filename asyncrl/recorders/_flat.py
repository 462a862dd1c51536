"""A configuration as one level of names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def flatten(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield what nested mappings hold, each under its names joined by dots."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value
