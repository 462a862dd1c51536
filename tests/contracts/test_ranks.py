"""Several learners with a part of each batch learn what one does with all of it.

The ranks are threads here, which sum in shared memory; processes are in `tests/cli`. The cases are
those of `test_agent`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.impala import IMPALAConfig
from asyncrl.agents.parts import updater
from asyncrl.agents.parts.policy_gradient import TrajectoryAgent
from asyncrl.agents.ppo import PPOConfig
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError, NonFiniteModel
from asyncrl.core.ranks import join
from asyncrl.core.types import Array, Columns, Params
from tests.contracts.test_agent import CASES, CHOICES, Case, batch_for
from tests.support.helpers import copied
from tests.support.ranks import ThreadRanks

REFUSED = {"crossq", "constant"}
TOGETHER = {name: case for name, case in CASES.items() if name not in REFUSED}
TOGETHER["impala-advantages"] = Case(
    IMPALAConfig(hidden=(16, 16), device="cpu", normalize_advantages=True), CHOICES
)
GENERATORS = {"noise", "draws", "order", "random"}


def joined(case: Case, world: int = 2) -> tuple[ThreadRanks, list[Any]]:
    """Return ranks, and one agent for each of them."""
    ranks = ThreadRanks(world)
    agents: list[Any] = [case.build() for _ in range(world)]
    for agent, member in zip(agents, ranks.members, strict=True):
        join(agent, member)
    return ranks, agents


def learn_together(ranks: ThreadRanks, agents: list[Any], batches: list[Columns]) -> list[Any]:
    calls = zip(agents, batches, strict=True)
    return ranks.run([partial(agent.opt, copied(batch)) for agent, batch in calls])


def batch_of(case: Case, number: int) -> dict[str, Array]:
    """Return a batch with importance weights, whose number of rows is no other size here."""
    batch = batch_for(case, number)
    rows = len(batch["reward"]) - 1
    weight = np.random.default_rng(number).random(rows, np.float32)
    return {name: column[:rows] for name, column in batch.items()} | {
        "weight": weight / weight.max()
    }


def cut(batch: Columns, first: int) -> list[Columns]:
    """Cut a batch in two, with the weights that each part has if it comes from its own replay."""
    parts: list[Columns] = []
    for rows in (slice(first), slice(first, None)):
        part = {name: column[rows] for name, column in batch.items()}
        largest = part["weight"].max()
        weights = {
            "weight": part["weight"] / largest,
            "largest_weight": np.full_like(part["weight"], largest),
        }
        parts.append(part | weights)
    return parts


def share_draws(whole: Any, agents: list[Any], first: int, all_rows: int) -> None:
    """Let two ranks use the random numbers that one learner has drawn for their rows."""
    newest: dict[str, Tensor] = {}
    draw = whole.draw
    drawn_for = 0

    def of_whole(rows: int) -> dict[str, Tensor]:
        nonlocal drawn_for
        drawn_for = rows
        newest.clear()
        newest.update(draw(rows))
        return dict(newest)

    def of_part(rows: int, mine: slice, own: Any) -> dict[str, Tensor]:
        parts: dict[str, Tensor] = own(rows)
        if drawn_for == rows:
            return dict(newest)
        if drawn_for < all_rows:  # for rows of the other rank; these do not count
            return parts
        for name, part in parts.items():
            # What is not drawn for each row is the same for all of them.
            sizes = zip(newest[name].shape, part.shape, strict=True)
            index = tuple(mine if size != its else slice(None) for size, its in sizes)
            parts[name] = newest[name][index]
        return parts

    whole.draw = of_whole
    for agent, mine in zip(agents, (slice(first), slice(first, None)), strict=True):
        agent.draw = partial(of_part, mine=mine, own=agent.draw)


def learned(state: Params) -> dict[str, Array]:
    """Return what has been learned, without generators, in one row for each part."""
    parts: dict[str, list[Array]] = {}
    for name, value in state.items():
        part = name.split("/")[0]
        if part not in GENERATORS:
            parts.setdefault(part, []).append(value.astype(np.float64).ravel())
    return {part: np.concatenate(values) for part, values in parts.items()}


@pytest.mark.parametrize("case", TOGETHER.values(), ids=TOGETHER)
def test_ranks_learn_what_one_learner_does_with_all_rows(case: Case) -> None:
    if isinstance(case.config, PPOConfig):  # minibatches would be of other rows
        case = replace(case, config=replace(case.config, minibatches=1))
    whole: Any = case.build()
    ranks, agents = joined(case)
    all_rows = len(batch_of(case, 0)["reward"])
    first = all_rows // 3
    share_draws(whole, agents, first, all_rows)
    for number in range(5):
        batch: Columns = batch_of(case, number)
        parts = cut(batch, first)
        calls = [
            partial(agent.opt, copied(part)) for agent, part in zip(agents, parts, strict=True)
        ]
        if number in {2, 3}:
            batch, calls[1] = parts[0], agents[1].opt_without_batch
        if number == 3 and isinstance(whole, TrajectoryAgent):
            no_rows = {**parts[1], "mask": np.zeros_like(parts[1]["mask"])}
            calls[1] = partial(agents[1].opt, no_rows)
        expected = {name: float(value) for name, value in whole.opt(copied(batch)).items()}
        expected.pop("explained_variance", None)  # the mean of both has no such meaning
        for metrics in ranks.run(calls):
            numbers = {name: float(metrics[name]) for name in expected}
            assert numbers == pytest.approx(expected, rel=1e-4, abs=1e-5)
    states = [learned(agent.state()) for agent in agents]
    for part, values in learned(whole.state()).items():
        assert np.array_equal(states[0][part], states[1][part]), "bit for bit"
        assert np.linalg.norm(states[0][part] - values) <= 1e-6 * np.linalg.norm(values), part


def test_difference_between_ranks_is_found() -> None:
    ranks, agents = joined(CASES["td3-ladder"], 3)
    parts = [batch_for(CASES["td3-ladder"], number) for number in range(3)]
    learn_together(ranks, agents, parts)
    assert ranks.run([agent.differing_ranks for agent in agents]) == [()] * 3
    with torch.no_grad():
        next(agents[1].critics.parameters()).view(-1)[0] += 1e-6
    assert ranks.run([agent.differing_ranks for agent in agents]) == [(1,)] * 3


def test_ranks_draw_other_numbers_from_equal_states() -> None:
    _, agents = joined(CASES["sac"], 3)
    state = agents[0].state()
    for _ in range(2):
        draws = [agent.draw(4)["noise"] for agent in agents]
        assert not any(torch.equal(draws[a], draws[b]) for a, b in [(0, 1), (0, 2), (1, 2)])
        for agent in agents:
            agent.load_state(state)
    alone = CASES["sac"].build()
    alone.load_state(state)
    assert torch.equal(alone.draw(4)["noise"], draws[0]), "rank 0 draws as one learner does"


@pytest.mark.parametrize(("name", "steps"), [("ppo", 8), ("ppo-lstm", 4)])
def test_ranks_take_equally_many_steps_whatever_their_rows(name: str, steps: int) -> None:
    """Of the parts of rank 0's rows, some are empty; with a memory, rank 1 has 4 parts itself.

    Both stop after one epoch, since the divergence of both together is above its target.
    """
    case = CASES[name]
    case = replace(case, config=replace(case.config, minibatches=8, target_kl=1e-9))  # type: ignore[type-var]
    ranks, agents = joined(case)
    improve = agents[0].improve
    agents[0].improve = lambda *minibatch: improve(*minibatch) | {"approx_kl": torch.zeros(())}
    few, many = cut(batch_of(case, 0), 1)
    mask = np.zeros_like(few["mask"])
    mask[0, :2] = True
    for numbers in learn_together(ranks, agents, [{**few, "mask": mask}, many]):
        assert numbers["grad_steps"] == steps
    assert ranks.run([agent.differing_ranks for agent in agents]) == [(), ()]


def test_error_names_the_rank_whose_gradient_is_not_finite() -> None:
    ranks, agents = joined(CASES["dqn"], 3)
    before = learned(agents[0].state())
    batches = [batch_for(CASES["dqn"], number) for number in range(3)]
    batches[2]["reward"][5] = np.nan
    calls = zip(agents, batches, strict=True)

    def error_of(agent: Any, batch: Columns) -> str:
        with pytest.raises(NonFiniteModel) as raised:
            agent.opt(batch)
        return str(raised.value)

    errors = set(ranks.run([partial(error_of, agent, batch) for agent, batch in calls]))
    (error,) = errors
    assert "the gradients or statistics of rank 2 became NaN" in error
    after = learned(agents[0].state())
    assert all(np.array_equal(after[part], before[part]) for part in ("model", "target"))


def batch_normalising(_: EnvSpec) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (CASES["crossq"], "statistics of the whole batch.*3 learners.*one learner, or SAC"),
        (CASES["constant"], "ConstantAgent.* cannot be one of several learners, 3 .*`join`"),
        (
            Case(DQNConfig(device="cpu", network=batch_normalising), CHOICES),
            "BatchNorm1d.* 3 learners' rows",
        ),
    ],
)
def test_what_cannot_be_computed_over_ranks_is_refused(case: Case, message: str) -> None:
    agent = case.build()
    join(agent, ThreadRanks(1).members[0])
    with pytest.raises(ConfigError, match=message):
        join(agent, ThreadRanks(3).members[0])


def test_weights_that_ranks_cannot_compare_are_refused() -> None:
    _, agents = joined(CASES["dqn"])
    with pytest.raises(ConfigError, match="no column largest_weight"):
        agents[0].opt(batch_of(CASES["dqn"], 0))


def test_accelerated_updates_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updater, "Accelerated", lambda *_: None)  # needs a GPU
    case = Case(DQNConfig(device="cpu", accelerate="graphs"), CHOICES)
    with pytest.raises(ConfigError, match=r"accelerate='graphs' cannot .* 2 here"):
        joined(case)
