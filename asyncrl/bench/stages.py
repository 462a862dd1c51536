"""The stages by name, in the order of the data's way: what `asyncrl bench` measures.

A new stage is one module beside this one, a line here, and its name in `workload.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from asyncrl.bench.load import Load
from asyncrl.bench.measure import Stage
from asyncrl.bench.stage_env import EnvStage
from asyncrl.bench.stage_learner import KINDS, LearnerStage, ReplayStage
from asyncrl.bench.stage_runs import SampleStage, TrainStage
from asyncrl.bench.stage_transport import CASES, TransportStage
from asyncrl.bench.workload import StageName, Workload


def _transports(workload: Workload) -> Iterator[Stage]:
    for case in CASES:
        yield TransportStage(workload, case)


def _replays(workload: Workload) -> Iterator[Stage]:
    for kind in KINDS:
        yield ReplayStage(Load.of(workload), kind)


def _one(make: Callable[[Load], Stage]) -> Callable[[Workload], Iterator[Stage]]:
    def stages(workload: Workload) -> Iterator[Stage]:
        yield make(Load.of(workload))

    return stages


STAGES: dict[StageName, Callable[[Workload], Iterator[Stage]]] = {
    "env": _one(EnvStage),
    "sample": _one(SampleStage),
    "transport": _transports,
    "replay": _replays,
    "learner": _one(LearnerStage),
    "train": _one(TrainStage),
}
"""Name -> what makes its measurements, each only when its turn has come."""


def make_stages(name: StageName | Literal["all"], workload: Workload) -> Iterator[Stage]:
    """Make the measurements of one stage, or of `all`, one after another."""
    for stage, make in STAGES.items():
        if name in {stage, "all"}:
            yield from make(workload)
