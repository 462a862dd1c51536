"""What is used of `ray.util`."""

from __future__ import annotations

from typing import Any

from ray.util import scheduling_strategies as scheduling_strategies


class _Group:
    def __init__(self, cpus: float) -> None:
        self._cpus = cpus

    def wait(self, _: float) -> bool:
        return self._cpus <= 4


def placement_group(bundles: Any, *, strategy: str) -> _Group:
    assert strategy in {"SPREAD", "PACK"}
    return _Group(sum(bundle["CPU"] for bundle in bundles))


def get_node_ip_address() -> str:
    return "127.0.0.1"
