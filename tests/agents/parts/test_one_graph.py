"""An update that is compiled is one function, and does what it does eagerly."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from asyncrl.agents.parts.schedules import Schedule
from asyncrl.core.types import Columns
from examples.own_torch_agent import QRDQNConfig
from tests.contracts.test_agent import CASES, Case, batch_for

ONCE = (
    "dqn dqn-normalized c51 rainbow iqn iqn-noisy sac discrete-sac discrete-sac-normalized bc awac "
    "awac-normalized iql own"
)
TWICE = "td3 crossq impala ppo"
"""Algorithms that are compiled with and without an update of the policy, or a second time for any
number of trajectories or rows of a minibatch."""

OWN = Case(QRDQNConfig(device="cpu"), CASES["dqn"].spec)
"""An agent of a user."""


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave out machine code, which takes a minute to make: run the traced operations."""
    compiling = torch.compile

    def trace(
        update: Callable[..., Any], *, fullgraph: bool, options: dict[str, Any]
    ) -> Callable[..., Any]:
        checks = {"guard_filter_fn": options["guard_filter_fn"]}
        return compiling(update, backend="aot_eager", fullgraph=fullgraph, options=checks)

    monkeypatch.setattr(torch, "compile", trace)
    counters.clear()
    yield
    torch.compiler.reset()


def learned(agent: Any, batches: list[Columns]) -> tuple[dict[str, Any], dict[str, float]]:
    """Return an agent's state after these batches, and its last numbers."""
    for batch in batches:
        metrics = agent.opt(batch)
    return agent.state(), {name: float(value) for name, value in metrics.items()}


def weighted_batches(case: Case, count: int) -> list[Columns]:
    batches = [batch_for(case, number) for number in range(count)]
    for number, batch in enumerate(batches):
        rows = len(batch["reward"])
        batch["weight"] = np.random.default_rng(number).random(rows, np.float32)
    return batches


def check_alike(compiled: Any, eager: Any, tolerance: float = 1e-5) -> None:
    state, metrics = compiled
    metrics.pop("compile_s", None)
    assert metrics == pytest.approx(eager[1], rel=tolerance, abs=tolerance)
    assert state.keys() == eager[0].keys()
    for name, right in eager[0].items():
        np.testing.assert_allclose(state[name], right, tolerance, tolerance, err_msg=name)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", [*ONCE.split(), *TWICE.split()])
def test_each_algorithm_is_one_graph_that_learns_as_eagerly(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = CASES.get(name, OWN)
    batches = weighted_batches(case, 50)
    compiled = learned(case.changed(accelerate="compile").build(), batches)
    assert compiled[1]["compile_s"] > 0.0
    check_alike(compiled, learned(case.build(), batches))
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1 + (name in TWICE.split())
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


SCHEDULED = {"dqn": "learning_rate", "ppo": "clip entropy_weight", "impala": "entropy_weight"}


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", SCHEDULED)
def test_schedules_are_not_compiled_in(name: str) -> None:
    falling = Schedule.linear(1e-2, 1e-3, 10)
    case = CASES[name].changed(**dict.fromkeys(SCHEDULED[name].split(), falling))
    agents = [case.build(), case.changed(accelerate="compile").build()]
    for number in range(12):
        for agent in agents:
            agent.env_steps = number
            agent.opt(batch_for(case, number))
    check_alike(*((agent.state(), {}) for agent in agents))
    assert counters["stats"]["unique_graphs"] == 1 + (name in TWICE.split())


@pytest.mark.usefixtures("traced")
def test_number_of_threads_can_change_in_mid_run() -> None:
    agent = CASES["dqn"].changed(accelerate="compile").build()
    before = torch.get_num_threads()
    try:
        for number in range(3):
            torch.set_num_threads(1 + number)
            agent.opt(batch_for(CASES["dqn"], number))
    finally:
        torch.set_num_threads(before)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", ["dqn", "sac", "td3"])
def test_agent_changes_to_compiled_updates_in_mid_run(name: str) -> None:
    case = CASES[name]
    agents = [case.build(), case.changed(accelerate="auto").build()]
    batches = weighted_batches(case, 8)
    for agent in agents:
        learned(agent, batches[:4])
    assert not counters["stats"]["unique_graphs"]
    agents[1].compile()  # type: ignore[attr-defined]  # of updating agents
    check_alike(*(learned(agent, batches[4:]) for agent in reversed(agents)))
    assert counters["stats"]["unique_graphs"] > 0


@pytest.mark.usefixtures("traced")
def test_rates_can_be_set_in_mid_run() -> None:
    agents = [CASES["sac"].build(), CASES["sac"].changed(accelerate="compile").build()]
    for number in range(4):
        for agent in agents:
            agent.parts["alpha_adam"].learning_rate = 0.01 * number
            agent.opt(batch_for(CASES["sac"], number))
    np.testing.assert_allclose(*(agent.state()["log_alpha/value"] for agent in agents), 1e-5, 1e-5)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_compiled_updates_resume_from_an_eager_state(name: str) -> None:
    case = CASES[name]
    first, second = case.build(), case.changed(accelerate="compile").build()
    learned(second, weighted_batches(case, 3))
    learned(first, weighted_batches(case, 4))
    second.load_state(first.state())
    batches = weighted_batches(case, 5)
    check_alike(learned(second, batches), learned(first, batches))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.usefixtures("traced")
def test_what_cannot_be_compiled_runs_eagerly_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    case = CASES["r2d2"]
    batches = [batch_for(case, number) for number in range(3)]
    compiled = learned(case.changed(accelerate="compile").build(), batches)
    check_alike(compiled, learned(case.build(), batches))
    (said,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert "LSTM" in said


@pytest.mark.behaviour(number=65)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@pytest.mark.timeout(600)  # machine code takes a minute to make
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["dqn-normalized", "rainbow", "iqn-noisy", "sac"])
def test_compiled_updates_are_those_of_eager_ones(name: str, precision: str) -> None:
    # Not CrossQ: in bfloat16 its moments are 0.2 from those in float32 after 6 updates, compiled or
    # not. That is rounding: without machine code compiled ones are within 0.004 of eager ones.
    case = CASES[name].changed(precision=precision)
    batches = weighted_batches(case, 6)
    compiled = learned(case.changed(accelerate="compile").build(), batches)
    check_alike(compiled, learned(case.build(), batches), 0.05 if precision == "bfloat16" else 1e-5)
