"""As much of MLflow as its recorder uses, in memory, with the limits that MLflow has."""

from __future__ import annotations

import posixpath
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@dataclass
class Param:
    key: str
    value: str


@dataclass
class Metric:
    key: str
    value: float
    timestamp: int
    step: int


@dataclass
class Run:
    """What was logged of one."""

    experiment: str
    name: str | None
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, list[Metric]] = field(default_factory=lambda: defaultdict(list))
    status: str = "RUNNING"
    lifecycle_stage: str = "active"


class Store:
    """What a server of MLflow would hold."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, Run] = {}
        self.uris: list[str | None] = []
        self.refusal: MlflowException | None = None
        """What it answers a request for a run."""

    def values(self, name: str) -> list[float]:
        """Return what a metric was, in any run."""
        return [m.value for run in self.runs.values() for m in run.metrics.get(name, ())]


class MlflowException(Exception):
    """The store refuses."""

    def __init__(self, message: str, error_code: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class Client:
    """The tracking client."""

    def __init__(self, store: Store, tracking_uri: str | None = None) -> None:
        self._store = store
        store.uris.append(tracking_uri)

    def get_experiment_by_name(self, name: str) -> Any:
        known = self._store.experiments.get(name)
        return SimpleNamespace(experiment_id=known) if known else None

    def create_experiment(self, name: str) -> str:
        assert name not in self._store.experiments, "MLflow refuses to make one twice"
        self._store.experiments[name] = f"id of {name}"
        return self._store.experiments[name]

    def create_run(self, experiment_id: str, run_name: str | None = None) -> Any:
        run_id = f"run {len(self._store.runs)}"
        self._store.runs[run_id] = Run(experiment_id, run_name)
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def get_run(self, run_id: str) -> Any:
        if self._store.refusal:
            raise self._store.refusal
        if run_id not in self._store.runs:
            raise MlflowException(f"Run '{run_id}' not found", "RESOURCE_DOES_NOT_EXIST")
        run = self._store.runs[run_id]
        return SimpleNamespace(data=SimpleNamespace(params=run.params), info=run)

    def update_run(self, run_id: str, status: str) -> None:
        assert self._store.runs[run_id].lifecycle_stage == "active"
        self._store.runs[run_id].status = status

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(metrics) <= 1000
        assert len(params) <= 100
        run = self._store.runs[run_id]
        for one in (*metrics, *params):
            assert re.fullmatch(r"[/\w.\- ]+", one.key), one.key
            assert posixpath.normpath(one.key) == one.key, one.key
            assert not one.key.startswith(("..", "/")), one.key
        for metric in metrics:
            run.metrics[metric.key].append(metric)
        for param in params:
            assert len(param.value) <= 500
            assert run.params.get(param.key, param.value) == param.value
            run.params[param.key] = param.value

    def set_terminated(self, run_id: str, status: str) -> None:
        self._store.runs[run_id].status = status


def install(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Have it imported in place of MLflow."""
    store = Store()
    package, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    exceptions = ModuleType("mlflow.exceptions")
    exceptions.MlflowException = MlflowException  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", exceptions)
    package.MlflowClient = lambda uri=None: Client(store, uri)  # type: ignore[attr-defined]
    entities.Param, entities.Metric = Param, Metric  # type: ignore[attr-defined]
    package.store = store  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return store


def installed() -> Store:
    """Return what it has kept."""
    store: Store = sys.modules["mlflow"].store
    return store
