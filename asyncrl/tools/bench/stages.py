"""The stages of `asyncrl bench` by name, in the order of the data flow.

A new stage is one module here, one line below, and its name in `workload.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from asyncrl.tools.bench.load import Load
from asyncrl.tools.bench.measure import Stage
from asyncrl.tools.bench.stage_env import env_stage
from asyncrl.tools.bench.stage_learner import learner_stage, update_stage
from asyncrl.tools.bench.stage_runs import sample_stage, train_stage
from asyncrl.tools.bench.workload import StageName, Workload


def _samples(workload: Workload) -> Iterator[Stage]:
    load = Load.of(workload)
    yield sample_stage(load)
    yield sample_stage(load, served=True)


def _learners(workload: Workload) -> Iterator[Stage]:
    load = Load.of(workload)
    yield learner_stage(load)
    yield update_stage(load)


def _one(make: Callable[[Load], Stage]) -> Callable[[Workload], Iterator[Stage]]:
    def stages(workload: Workload) -> Iterator[Stage]:
        yield make(Load.of(workload))

    return stages


STAGES: dict[StageName, Callable[[Workload], Iterator[Stage]]] = {
    "env": _one(env_stage),
    "sample": _samples,
    "learner": _learners,
    "train": _one(train_stage),
}
"""Name -> functions that make its measurements, each called only when it is due."""


def make_stages(name: StageName | Literal["all"], workload: Workload) -> Iterator[Stage]:
    """Make the measurements of one stage, or of `all`, one after another."""
    for stage, make in STAGES.items():
        if name in {stage, "all"}:
            yield from make(workload)
