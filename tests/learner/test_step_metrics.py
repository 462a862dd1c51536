"""Summaries of what an agent returns from each step."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from asyncrl.core.errors import ConfigError
from asyncrl.learner.step_metrics import StepMetrics


@pytest.mark.behaviour(number=60)
def test_each_number_has_mean_minimum_maximum_and_a_count() -> None:
    metrics = StepMetrics()
    for loss in (1.0, 4.0, 1.0):
        metrics.add({"loss": loss, "alpha": torch.tensor(0.1)})
    record = metrics.take()
    losses = {"loss": 2.0, "loss_min": 1.0, "loss_max": 4.0}
    assert record == {**losses, "alpha": np.float32(0.1), "count": 3.0}
    assert metrics.last is record
    for loss in (1.0, math.nan, 2.0):
        metrics.add({"loss": loss})
    record = metrics.take()
    assert all(math.isnan(record[name]) for name in losses), "one shows in all of them"


def test_numbers_are_read_many_steps_at_a_time() -> None:
    metrics = StepMetrics()
    for step in range(1000):
        metrics.add(
            {"loss": torch.tensor(float(step)), "odd": step} if step % 2 else {"loss": step}
        )
    record = metrics.take()
    assert (record["loss"], record["loss_min"], record["loss_max"]) == (499.5, 0.0, 999.0)
    assert (record["odd"], record["odd_min"]) == (500.0, 1.0)
    assert record["count"] == 1000.0


def test_value_that_is_no_number_is_named() -> None:
    metrics = StepMetrics()
    metrics.add({"loss": torch.zeros(2)})
    with pytest.raises(ConfigError, match="agent/loss must be one number"):
        metrics.take()


@pytest.mark.gpu
def test_numbers_on_a_gpu_are_copied_together() -> None:
    metrics = StepMetrics()
    for step in range(10):
        metrics.add({"loss": torch.tensor(float(step), device="cuda")})
    assert metrics.take()["loss"] == 4.5
