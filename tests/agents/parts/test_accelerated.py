"""Updates that are compiled or recorded do what they do one operation after another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor, nn

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.parts import accelerated
from asyncrl.agents.parts.accelerated import Accelerated, flushed_denormals
from asyncrl.agents.parts.torch_agent import Acceleration
from asyncrl.core.agent import PolicyContext
from asyncrl.core.errors import ConfigError
from tests.agents.chain import TWO_STATES, random_batch
from tests.agents.parts.test_one_graph import check_alike, learned, weighted_batches
from tests.contracts.test_agent import CASES, batch_for

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


@pytest.mark.gpu
def test_graphs_update_once_a_call_and_report_numbers_that_stay() -> None:
    sizes = [2] * 8 + [5, 2]
    expected = run("off", torch.device("cuda"), sizes)[1]
    counting, results = run("graphs", torch.device("cuda"), sizes)
    assert results == expected
    assert counting.calls < len(sizes)


def test_what_cannot_be_captured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Stream", "stream", "current_stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "graph", MagicMock(side_effect=torch.AcceleratorError("waits")))
    counting = Counting(CPU)
    update = Accelerated(lambda data: counting.update(data) and {}, "graphs", torch.device("cuda"))
    for _ in range(3):
        update({"x": torch.ones(2, 3)})
    with pytest.raises(ConfigError, match=r"cannot be captured .* set agent\.accelerate to off"):
        update({"x": torch.ones(2, 3)})
    assert counting.total.tolist() == [6.0] * 3


def test_denormals_are_flushed_in_updates_and_nowhere_else() -> None:
    smallest = torch.full((64,), torch.finfo(torch.float32).tiny)
    with flushed_denormals(), flushed_denormals():
        assert not (smallest * 0.5).any()
    assert (smallest * 0.5).all()
    torch.set_flush_denormal(True)
    try:
        with flushed_denormals():
            pass
        assert not (smallest * 0.5).any()  # as its user has set it
    finally:
        torch.set_flush_denormal(False)


def test_graphs_on_a_cpu_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"captures CUDA graphs, but the learner computes on cpu"):
        Accelerated(Counting(CPU).update, "graphs", CPU)


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for a CPU on which oneDNN multiplies faster than MKL."""
    monkeypatch.setattr(accelerated, "_onednn_is_better", lambda: True)


@pytest.mark.usefixtures("amd")
@pytest.mark.parametrize(("width", "precision"), [(8, "none"), (65_536, "bf16")])
def test_only_updates_of_large_networks_change_who_multiplies(width: int, precision: str) -> None:
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # made on import
    seen: list[str] = []

    class Own(nn.Sequential):
        def forward(self, obs: Tensor) -> Tensor:
            seen.append(settings.fp32_precision)
            return super().forward(obs)  # type: ignore[no-any-return]

    config = DQNConfig(network=lambda _: Own(nn.Linear(2, width), nn.Linear(width, 2)))
    agent = config.build(TWO_STATES, PolicyContext(seed=0))
    batch = random_batch()
    before = settings.fp32_precision
    seen.clear()
    agent.opt(batch)
    assert set(seen) == {before if precision == "none" else precision}
    assert settings.fp32_precision == before
    seen.clear()
    agent.act(batch["obs"])
    assert seen == [before]


# --- whole agents -------------------------------------------------------------------------------

RECORDED = (
    "dqn-normalized rainbow iqn-noisy sac discrete-sac td3 crossq bc awac awac-normalized iql"
)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", RECORDED.split())
def test_recorded_updates_are_those_of_eager_ones(name: str, precision: str) -> None:
    # Draws of a GPU depend on its generator alone, which both runs start alike.
    case = CASES[name].changed(device="cuda", precision=precision)
    batches = weighted_batches(case, 12)
    recorded = learned(case.changed(accelerate="graphs").build(), batches)
    check_alike(recorded, learned(case.changed(accelerate="off").build(), batches), 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("changes", "captured"),
    [({}, True), ({"accumulate": 2}, False), ({"network": lambda _: nn.LazyLinear(4)}, False)],
)
def test_auto_captures_what_no_user_has_changed(changes: dict[str, Any], captured: bool) -> None:
    agent: Any = CASES["dqn"].changed(device="cuda", accelerate="auto", **changes).build()
    batches = weighted_batches(CASES["dqn"], 8)
    learned(agent, batches[:6])
    passes: list[object] = []
    agent.net.register_forward_hook(lambda *_: passes.append(None))
    learned(agent, batches[6:])
    assert bool(passes) is not captured  # a captured update calls no Python any more


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_recorded_updates_resume_from_a_state(name: str) -> None:
    case = CASES[name]
    config: Any = replace(case.config, device="cuda", accelerate="graphs")  # type: ignore[type-var]
    first, second = (replace(case, config=config).build() for _ in range(2))
    for number in range(6):
        first.opt(batch_for(case, number))
        second.opt(batch_for(case, 6 + number))
    second.load_state(first.state())
    numbers = [[agent.opt(batch_for(case, n)) for n in range(6)] for agent in (first, second)]
    for mine, right in zip(numbers[1], numbers[0], strict=True):
        assert {n: float(v) for n, v in mine.items()} == pytest.approx(
            {n: float(v) for n, v in right.items()}, abs=1e-4
        )
