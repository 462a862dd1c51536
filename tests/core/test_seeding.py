"""Each part of a run has a separate random stream, the same in every run."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from asyncrl.core.seeding import Role, derive_seed


def test_no_two_parts_share_a_seed() -> None:
    parts = list(product(range(4), Role, range(20), range(3)))
    seeds = {
        derive_seed(seed, role, actor, incarnation) for seed, role, actor, incarnation in parts
    }
    assert len(seeds) == len(parts)


def test_which_is_not_run_together() -> None:
    which = [(), (0,), (0, 0), (1, 23), (12, 3), (123,), (1, 2, 3)]
    assert len({derive_seed(0, Role.POLICY, *w) for w in which}) == len(which)


@pytest.mark.parametrize("seed", [0, 2**31, 2**128 - 1])
def test_seeds_fit_any_generator(seed: int) -> None:
    for role in Role:
        derived = derive_seed(seed, role, 10**6)
        assert type(derived) is int
        assert 0 <= derived < 2**31
        np.random.RandomState(derived)  # the pickiest one


@pytest.mark.behaviour(number=53)
def test_streams_of_neighbours_are_not_alike() -> None:
    seeds = [derive_seed(0, Role.ENVIRONMENT, actor) for actor in range(8)]
    draws = [np.random.default_rng(seed).standard_normal(2000) for seed in seeds]
    correlation = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlation).max() < 0.1  # about 4.5 standard deviations


def test_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="non-negative"):
        derive_seed(-1, Role.LEARNER)
