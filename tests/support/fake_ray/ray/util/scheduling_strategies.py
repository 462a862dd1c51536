"""What is used of `ray.util.scheduling_strategies`."""

from __future__ import annotations


def PlacementGroupSchedulingStrategy(_: object, placement_group_bundle_index: int) -> int:  # noqa: N802
    return placement_group_bundle_index
