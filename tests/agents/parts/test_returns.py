"""Sums of rewards against the papers' equations, written out for one episode after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.agents.parts.policy_gradient import gae, vtrace
from asyncrl.agents.r2d2 import rescale, undo_rescale
from asyncrl.core.types import Array
from tests.support.scale import examples

GAMMA = 0.9

# What a row is: a transition, one that terminates or truncates its episode, none.
STEP, TERMINATES, TRUNCATES, NOTHING = "step", "terminates", "truncates", "nothing"


@dataclass(frozen=True)
class Rows:
    """Trajectories (B, T) as a queue of them hands them out, and what their rows are."""

    kinds: list[list[str]]
    reward: Array
    discount: Array
    mask: Array
    values: Array
    log_rhos: Array

    def episodes(self) -> Iterator[tuple[int, list[int], bool]]:
        """Yield each stretch of one episode: its trajectory, its rows, whether it terminated."""
        for b, kinds in enumerate(self.kinds):
            rows: list[int] = []
            for t, kind in enumerate(kinds):
                if kind != NOTHING:
                    rows.append(t)
                if rows and (kind != STEP or t == len(kinds) - 1):
                    yield b, rows, kind == TERMINATES
                    rows = []


@st.composite
def trajectories(draw: st.DrawFn) -> Rows:
    n, length = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    kinds = []
    for _ in range(n):
        row: list[str] = []
        while len(row) < length:
            kind = draw(st.sampled_from([STEP, STEP, STEP, TERMINATES, TRUNCATES, NOTHING]))
            # Behind the end of an episode stands the row of its last observation.
            row += [kind, NOTHING] if kind in {TERMINATES, TRUNCATES} else [kind]
        kinds.append(row[:length])
    random = np.random.default_rng(draw(st.integers(0, 10_000)))
    mask = np.array([[kind != NOTHING for kind in row] for row in kinds])
    goes_on = np.array([[kind in {STEP, TRUNCATES} for kind in row] for row in kinds])
    return Rows(
        kinds,
        reward=np.where(mask, random.normal(size=mask.shape), 0.0),
        discount=np.where(goes_on, GAMMA, 0.0),
        mask=mask,
        values=random.normal(size=(n, length + 1)),
        log_rhos=random.normal(size=mask.shape),
    )


class Tensors(NamedTuple):
    """What both estimators take, in their order."""

    reward: torch.Tensor
    discount: torch.Tensor
    mask: torch.Tensor
    values: torch.Tensor


def tensors(rows: Rows) -> Tensors:
    numbers = (rows.reward, rows.discount, rows.mask, rows.values)
    return Tensors(*map(torch.from_numpy, numbers))


def bootstrap(rows: Rows, b: int, last: int, terminated: bool) -> float:
    """Return the value of what follows an episode's last row, of which nothing else is known."""
    return 0.0 if terminated else float(rows.values[b, last + 1])


@given(trajectories(), st.sampled_from([0.0, 0.7, 1.0]))
@settings(max_examples=examples(100), deadline=None)
def test_gae_is_the_weighted_sum_of_the_errors_ahead(rows: Rows, lambda_: float) -> None:
    expected = np.zeros_like(rows.reward)
    for b, episode, terminated in rows.episodes():
        value = [float(rows.values[b, t]) for t in episode]
        value.append(bootstrap(rows, b, episode[-1], terminated))
        delta = [rows.reward[b, t] + GAMMA * value[i + 1] - value[i] for i, t in enumerate(episode)]
        for i, t in enumerate(episode):
            # A_t = sum over k of (gamma lambda)^k delta_t+k
            expected[b, t] = sum((GAMMA * lambda_) ** k * d for k, d in enumerate(delta[i:]))
    advantages = gae(*tensors(rows), lambda_)
    np.testing.assert_allclose(advantages.numpy(), expected, atol=1e-9)


class Clips(TypedDict):
    """The largest importance of everything."""

    clip_rho: float
    clip_c: float
    clip_pg_rho: float


def naive_vtrace(rows: Rows, lambda_: float, clips: Clips) -> tuple[Array, Array]:
    """Espeholt et al. (2018), equation 1 and section 4.2, with the products written out."""
    targets, advantages = rows.values[:, :-1].copy(), np.zeros_like(rows.reward)
    for b, episode, terminated in rows.episodes():
        ratio = [math.exp(rows.log_rhos[b, t]) for t in episode]
        value = [float(rows.values[b, t]) for t in episode]
        value.append(bootstrap(rows, b, episode[-1], terminated))
        v = []
        for s in range(len(episode)):
            v.append(value[s])
            for t in range(s, len(episode)):
                rho = min(clips["clip_rho"], ratio[t])
                delta = rho * (rows.reward[b, episode[t]] + GAMMA * value[t + 1] - value[t])
                c = math.prod(lambda_ * min(clips["clip_c"], ratio[i]) for i in range(s, t))
                v[s] += GAMMA ** (t - s) * c * delta
        v.append(value[-1])
        for s, row in enumerate(episode):
            targets[b, row] = v[s]
            rho = min(clips["clip_pg_rho"], ratio[s])
            advantages[b, row] = rho * (rows.reward[b, row] + GAMMA * v[s + 1] - value[s])
    return targets, advantages


@given(
    trajectories(),
    st.sampled_from([0.0, 0.8, 1.0]),
    st.builds(
        Clips,
        clip_rho=st.sampled_from([0.3, 1.0, 2.0, 1e9]),
        clip_c=st.sampled_from([0.3, 1.0, 2.0, 1e9]),
        clip_pg_rho=st.sampled_from([0.5, 1.0, 1e9]),
    ),
)
@settings(max_examples=examples(100), deadline=None)
def test_vtrace_is_that_of_the_paper(rows: Rows, lambda_: float, clips: Clips) -> None:
    targets, advantages = naive_vtrace(rows, lambda_, clips)
    found = vtrace(torch.from_numpy(rows.log_rhos), *tensors(rows), lambda_=lambda_, **clips)
    np.testing.assert_allclose(found.targets.numpy(), targets, atol=1e-9)
    np.testing.assert_allclose(found.advantages.numpy(), advantages, atol=1e-9)


@given(trajectories())
@settings(max_examples=20, deadline=None)
def test_what_stands_in_other_rows_does_not_matter(rows: Rows) -> None:
    log_rhos, given_ = torch.from_numpy(rows.log_rhos), tensors(rows)
    infinite = torch.where(given_.mask, log_rhos, math.inf)
    assert all(map(torch.equal, vtrace(log_rhos, *given_), vtrace(infinite, *given_)))
    unknown = given_._replace(reward=torch.where(given_.mask, given_.reward, math.nan))
    assert torch.equal(gae(*given_, 0.9), gae(*unknown, 0.9))


@given(st.floats(-1e6, 1e6, width=32), st.sampled_from([0.0, 1e-3, 1e-2]))
def test_rescaling_is_undone_in_single_precision(value: float, eps: float) -> None:
    x = torch.tensor(value)
    assert float(undo_rescale(rescale(x, eps), eps)) == pytest.approx(value, rel=1e-5, abs=1e-6)
