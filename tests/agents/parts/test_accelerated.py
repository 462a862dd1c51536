"""Updates that are compiled or recorded do what they do one operation after another."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import accumulate, cycle

import pytest
import torch
from torch import Tensor

from asyncrl.agents.parts.accelerated import (
    Accelerated,
    FlushedDenormals,
    multiplies_better,
)
from asyncrl.agents.parts.torch_config import Acceleration
from asyncrl.core.errors import ConfigError

CPU = torch.device("cpu")


class Counting:
    """An update that changes what it works on in place."""

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros(3, device=device)
        self.calls = 0

    def update(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        self.calls += 1
        self.total.add_(data["x"].sum(dim=0))
        return {"largest": self.total.max(), "row": data["x"].mean(dim=0)}


def run(how: Acceleration, device: torch.device, sizes: list[int]) -> tuple[Counting, list[float]]:
    counting = Counting(device)
    accelerated = Accelerated(counting.update, how, device)
    results = []
    for turn, size in enumerate(sizes):
        x = torch.full((size, 3), float(turn + 1), device=device)
        answer = accelerated({"x": x})
        assert answer["row"].tolist() == [turn + 1.0] * 3
        results.append(answer["largest"])
    return counting, [float(value) for value in results]


def test_off_calls_the_update_itself() -> None:
    counting, results = run("off", CPU, [2, 2, 4])
    assert (counting.calls, results) == (3, [2.0, 6.0, 18.0])


@pytest.mark.gpu
def test_graphs_update_once_a_call_and_report_numbers_that_stay() -> None:
    sizes = [2] * 8 + [5, 2]
    expected = run("off", torch.device("cuda"), sizes)[1]
    counting, results = run("graphs", torch.device("cuda"), sizes)
    assert results == expected
    assert counting.calls < len(sizes)


@pytest.mark.gpu
def test_graphs_work_on_new_tensors_once_asked_to_forget() -> None:
    device = torch.device("cuda")
    counting = Counting(device)
    accelerated = Accelerated(counting.update, "graphs", device)
    x = torch.ones(1, 3, device=device)
    for _ in range(6):
        accelerated({"x": x})
    counting.total = torch.zeros(3, device=device)
    accelerated.forget()
    for _ in range(6):
        accelerated({"x": x})
    assert counting.total.tolist() == [6.0] * 3


def test_denormals_are_flushed_in_updates_and_nowhere_else() -> None:
    smallest = torch.full((64,), torch.finfo(torch.float32).tiny)
    with FlushedDenormals(), FlushedDenormals():
        assert not (smallest * 0.5).any()
    assert (smallest * 0.5).all()
    torch.set_flush_denormal(True)
    try:
        with FlushedDenormals():
            pass
        assert not (smallest * 0.5).any()  # as its user has set it
    finally:
        torch.set_flush_denormal(False)


def test_graphs_on_a_cpu_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"captures CUDA graphs, but the learner computes on cpu"):
        Accelerated(Counting(CPU).update, "graphs", CPU)


def test_compiling_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler"):
        Accelerated(Counting(CPU).update, "compile", CPU)


@pytest.mark.parametrize(
    ("seconds", "better"), [((2.0, 1.0), True), ((1.0, 1.0), False), ((1.0, 2.0), False)]
)
def test_library_is_chosen_by_the_time_of_a_product(
    seconds: tuple[float, float], better: bool
) -> None:
    own_s, other_s = seconds
    times = accumulate(cycle([0.0, own_s, 0.0, other_s]))
    assert multiplies_better(nullcontext, lambda: next(times)) is better


def test_library_that_multiplies_in_a_lower_precision_is_not_chosen() -> None:
    times = accumulate(cycle([0.0, 2.0, 0.0, 1.0]))
    bfloat16 = partial(torch.autocast, "cpu", torch.bfloat16)
    assert not multiplies_better(bfloat16, lambda: next(times))
