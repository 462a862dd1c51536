"""Checks let right arrays through as they are, and say of wrong ones what a person needs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, Space
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncrl.core.env_checks import shown
from asyncrl.core.errors import EnvironmentFault
from asyncrl.envs.checks import Checks
from asyncrl.envs.spaces import Parts, spec_from_spaces
from tests.support.scale import examples

SHAPES: Any = st.one_of(st.just(()), hnp.array_shapes(max_dims=3, max_side=3))


def checks(n_envs: int, shape: tuple[int, ...] = (2,), dtype: str = "float32") -> Checks:
    return checks_of(Box(0, 9, shape, dtype), n_envs)


def checks_of(space: Space[Any], n_envs: int) -> Checks:
    spec = spec_from_spaces(space, Discrete(2)).observation
    return Checks("Env-v0", n_envs, spec, Parts(space))


@given(SHAPES, st.sampled_from(["float32", "uint8", "int64"]), st.integers(1, 4), st.data())
@settings(max_examples=examples(80), deadline=None)
def test_stack_is_numpys_stack(
    shape: tuple[int, ...], dtype: str, n_envs: int, data: st.DataObject
) -> None:
    rows = [data.draw(hnp.arrays(dtype, shape)) for _ in range(n_envs)]
    stacked = checks(n_envs, shape, dtype).stack(rows, range(n_envs), None)
    np.testing.assert_array_equal(stacked, np.stack(rows))
    assert stacked.dtype == dtype
    assert not any(np.shares_memory(stacked, row) for row in rows)


@pytest.mark.fault("F25")
@given(SHAPES, st.lists(SHAPES, min_size=1, max_size=4))
@settings(max_examples=examples(200), deadline=None)
def test_stack_takes_rows_of_the_right_shape_and_no_others(
    shape: tuple[int, ...], found: list[tuple[int, ...]]
) -> None:
    rows = [np.zeros(s, np.float32) for s in found]
    check = checks(len(rows), shape)
    wrong = [i for i, s in enumerate(found) if s != shape]
    if not wrong:
        assert check.stack(rows, range(len(rows)), None).shape == (len(rows), *shape)
        return
    with pytest.raises(EnvironmentFault) as caught:
        check.stack(rows, range(len(rows)), None)
    assert f"environment {wrong[0]} of {len(rows)} (Env-v0)" in str(caught.value)
    assert f"of shape {found[wrong[0]]} and" in str(caught.value)


def test_stack_of_some_environments_blames_by_their_own_number() -> None:
    with pytest.raises(EnvironmentFault, match=r"environment 7 of 9 .* after reset"):
        checks(9).stack([np.zeros(2), np.zeros(3)], [4, 7], None)


@pytest.mark.fault("F8")
@pytest.mark.parametrize(
    ("dtype", "given_dtype", "fits"),
    [
        ("float32", "float64", True),
        ("float32", "int64", True),
        ("uint8", "int64", False),
        ("int64", "float32", False),
        ("uint8", "uint8", True),
        ("int64", "int32", True),
    ],
)
def test_dtypes_may_lose_digits_but_not_their_kind(
    dtype: str, given_dtype: str, fits: bool
) -> None:
    check, row = checks(1, (2,), dtype), np.ones(2, given_dtype)
    if fits:
        assert check.stack([row], [0], None).tolist() == [[1, 1]]
        assert check.own(row[None], None).dtype == dtype
        return
    with pytest.raises(EnvironmentFault, match=f"dtype {given_dtype}"):
        check.stack([row], [0], None)
    with pytest.raises(EnvironmentFault, match=f"dtype {given_dtype}"):
        check.own(row[None], None)


@pytest.mark.fault("F25")
@pytest.mark.parametrize("shape", [(), (2,), (2, 1)])
@pytest.mark.parametrize(
    ("dtype", "given_dtype", "value"),
    [("int32", "int64", 2**31), ("int8", "int64", -129), ("uint8", "uint16", 256)],
)
def test_integers_that_would_wrap_are_refused(
    dtype: str, given_dtype: str, value: int, shape: tuple[int, ...]
) -> None:
    check = checks(2, shape, dtype)
    rows = [np.full(shape, 1, given_dtype), np.full(shape, value, given_dtype)]
    said = rf"dtype {given_dtype}.*{value}.*declares .*, {dtype}\."
    with pytest.raises(EnvironmentFault, match=f"environment 1 of 2 .*{said}"):
        check.stack(rows, [0, 1], None)
    with pytest.raises(EnvironmentFault, match=rf"dtype {given_dtype}.*declares .*, {dtype}\."):
        check.own(np.stack(rows), None)
    assert check.stack(rows[:1] * 2, [0, 1], None).dtype == dtype, "what fits is taken"


def test_own_copies() -> None:
    obs = np.zeros((1, 2), np.float32)
    assert not np.shares_memory(checks(1).own(obs, None), obs)


@pytest.mark.parametrize("reward", [[1, 2.5], (np.float64(1), 2.5), np.array([1, 2.5])])
def test_rewards_become_new_float32(reward: Any) -> None:
    array = checks(2).reward(reward, np.zeros(2, int))
    assert array.dtype == np.float32
    assert array.tolist() == [1, 2.5]
    assert not np.shares_memory(array, np.asarray(reward))


@pytest.mark.fault("F8")
@pytest.mark.parametrize("wrong", [4, 8])
def test_what_is_none_of_the_choices_is_refused(wrong: int) -> None:
    check = checks_of(Discrete(3, start=5), 2)
    check.sound_obs("observation", np.array([5, 7]), None)
    said = (
        rf"environment 1 of 2 \(Env-v0\) gave the observation {wrong} after action 9, but its "
        r"space has choices from 5 to 7\."
    )
    with pytest.raises(EnvironmentFault, match=said):
        check.sound_obs("observation", np.array([5, wrong]), np.array([8, 9]))
    with pytest.raises(EnvironmentFault, match=r"environment 6 .* after reset"):
        check.sound_obs("observation", np.array([wrong]), None, np.array([6]))


@pytest.mark.fault("F8")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_finite_finds_every_kind(dtype: str, wrong: float) -> None:
    values = np.zeros((2, 3, 3), dtype)
    checks(2).finite("observation", values, None)
    values[1, 2, 2] = wrong
    with pytest.raises(EnvironmentFault, match="environment 1 of 2"):
        checks(2).finite("observation", values, None)


@pytest.mark.parametrize("flags", [[True, False], np.array([1, 0], np.uint8)])
def test_flags_become_a_new_array_of_bool(flags: Any) -> None:
    array = checks(2).flags("terminated", flags)
    assert array.dtype == np.bool_
    assert array.tolist() == [True, False]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (np.float32(0.5), "0.5"),
        (np.array([[1, 2], [3, 4]]), "[[1, 2], [3, 4]]"),
        (None, "None"),
        ({"a": 1}, "{'a': 1}"),
        ([[1], [2, 3]], "[[1], [2, 3]]"),
        (np.arange(84), "[0, 1, 2, 3, 4, 5, 6, 7, ...] (84 values from 0 to 83)"),
        (np.zeros(0), "[]"),
        ("some words", "'some words'"),
        (torch.ones(3, requires_grad=True), "[1.0, 1.0, 1.0]"),
        (torch.ones(2, dtype=torch.bfloat16), "tensor([1., 1.], dtype=torch.bfloat16)"),
    ],
)
def test_values_are_shown_in_one_short_line(value: Any, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    "value", [{"key": "x" * 1000}, ["x\n" * 50, None], np.array(["x" * 500, "y"]), "x" * 500]
)
def test_long_values_are_cut(value: Any) -> None:
    text = shown(value)
    assert "\n" not in text
    assert len(text) <= 200
