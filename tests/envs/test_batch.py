"""Plain environments stepped together: actions as they like them, and faults with an address."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from asyncrl.core.env import PackedSpec
from asyncrl.core.errors import ConfigError, EnvironmentFault
from asyncrl.envs.batch import PlainBatch
from tests.support.fake_envs import (
    TERMINATING,
    ActedEnv,
    BrokenEnv,
    NestedEnv,
    TellingEnv,
    make_vector_env,
    nested_makers,
    tell_nested,
    telling_makers,
)


def acted(space: Any, action: np.ndarray) -> list[Any]:
    """Step environments with these actions and return what each of them got."""
    envs = [ActedEnv(space) for _ in action]
    batch = PlainBatch([lambda env=env: env for env in envs], len(envs))
    batch.reset(0)
    batch.step(action)
    return [env.acted[0] for env in envs]


def broken(*, n_envs: int = 3, **how: Any) -> PlainBatch:
    """Return a batch whose second environment is broken."""
    makers = telling_makers([TERMINATING] * n_envs)
    makers[1] = partial(BrokenEnv, 1, **how)
    return PlainBatch(makers, n_envs)


def step_twice(batch: PlainBatch) -> None:
    batch.reset(0)
    for _ in range(2):
        batch.step(np.array([4, 3, 2]))


@pytest.mark.parametrize("shape", [(), (2, 1)])
def test_box_actions_arrive_as_arrays_of_the_space(shape: tuple[int, ...]) -> None:
    space = Box(-1, 1, shape, np.float64)
    action = np.linspace(-1, 1, 2 * math.prod(shape), dtype=np.float32).reshape(2, *shape)
    before = action.copy()
    for got, right in zip(acted(space, action), before, strict=True):
        assert isinstance(got, np.ndarray)
        assert space.contains(got)
        np.testing.assert_array_equal(got, right)
    np.testing.assert_array_equal(action, before, "the environments write into copies only")


@pytest.mark.fault("F4")
@pytest.mark.parametrize("at_step", [0, 2])
def test_error_of_an_environment_names_it(at_step: int) -> None:
    error = RuntimeError("the physics exploded")
    with pytest.raises(RuntimeError, match="exploded") as caught:
        step_twice(broken(at_step=at_step, error=error))
    assert caught.value is error
    where = "step of" if at_step else "reset of"
    after = ", action 3" if at_step else ""
    assert caught.value.__notes__ == [f"asyncrl: in {where} environment 1 of 3 (TellingEnv){after}"]


@pytest.mark.fault("F8", "F25")
@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"obs": np.array([0, math.nan, 0, math.inf], np.float32)},
            r"environment 1 of 3 \(TellingEnv\) gave the observation \[0.0, nan, 0.0, inf\], of "
            r"which 2 of 4 values are NaN or infinite after action 3\.",
        ),
        (
            {"reward": math.nan},
            r"environment 1 of 3 .* gave the reward nan, of which 1 of 1 values .* after action 3",
        ),
        (
            {"obs": np.zeros(3, np.float32)},
            r"environment 1 of 3 .* shape \(3,\) .* after action 3; .* \(4,\), float32",
        ),
        ({"obs": np.zeros(4, np.complex64)}, r"environment 1 of 3 .* and dtype complex64"),
        ({"obs": [[1.0], [2.0, 3.0]]}, r"environment 1 of 3 .* \[\[1.0\], \[2.0, 3.0\]\]"),
        (
            {"reward": [1.0, 2.0]},
            r"the rewards of 3 environments must be one number each, got \(\d.*\[1.0, 2.0\]",
        ),
        ({"reward": "much"}, "the rewards of 3 environments must be one number each, got .*much"),
    ],
)
def test_broken_promises_are_reported_with_place_value_and_action(
    how: dict[str, Any], message: str
) -> None:
    with pytest.raises(EnvironmentFault, match=message):
        step_twice(broken(**how))


@pytest.mark.parametrize("lengths", [(3, 5), (0, 8)])
def test_observations_that_only_fit_together_are_not_mixed(lengths: tuple[int, int]) -> None:
    wrong = [np.zeros(length, np.float32) for length in lengths]
    makers = [partial(BrokenEnv, i, obs=obs) for i, obs in enumerate(wrong)]
    batch = PlainBatch(makers, 2)
    batch.reset(0)
    batch.step(np.array([0, 0]))
    with pytest.raises(EnvironmentFault, match=rf"environment 0 of 2 .* shape \({lengths[0]},\)"):
        batch.step(np.array([0, 0]))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_values_too_large_for_the_declared_dtype_are_a_fault() -> None:
    huge = np.array([0, 1e300, 0, 0])
    with pytest.raises(EnvironmentFault, match="1 of 4 values are NaN or infinite"):
        step_twice(broken(obs=huge))
    with pytest.raises(EnvironmentFault, match="gave the reward inf"):
        step_twice(broken(reward=1e300))


def test_lists_and_numbers_of_other_kinds_are_taken() -> None:
    batch = broken(obs=[1, 2, 3, 4], reward=np.array(7, np.int8))
    batch.reset(0)
    batch.step(np.array([0, 0, 0]))
    out = batch.step(np.array([0, 0, 0]))
    assert out.obs[1].tolist() == [1, 2, 3, 4]
    assert out.reward[1] == 7


@pytest.mark.parametrize(
    ("observation", "found"),
    [
        (np.ones(4, np.float32), r"a single value, \[1\.0, 1\.0, 1\.0, 1\.0\]; "),
        (None, "a single value, None; "),
    ],
)
def test_reset_and_step_that_return_something_else_are_named(observation: Any, found: str) -> None:
    class NoInfo(TellingEnv):
        def reset(self, **_: Any) -> Any:
            return observation

    class NoStep(TellingEnv):
        def step(self, _: Any) -> Any:
            return observation

    with pytest.raises(EnvironmentFault, match=f"^reset of environment 1 .* {found}.* requires 2"):
        PlainBatch([TellingEnv, NoInfo], 2).reset(0)
    batch = PlainBatch([TellingEnv, NoStep], 2)
    batch.reset(0)
    with pytest.raises(EnvironmentFault, match=f"^step of environment 1 .* {found}.* requires 5"):
        batch.step(np.array([0, 0]))


@pytest.mark.parametrize("wrong", [make_vector_env, lambda: None])
def test_factory_must_make_plain_environments(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="a factory of single environments returned"):
        PlainBatch(wrong, 1)


def test_close_closes_all_of_them_once_even_if_one_fails() -> None:
    class Stubborn(TellingEnv):
        def close(self) -> None:
            super().close()
            raise OSError("the window does not close")

    envs = [TellingEnv(), Stubborn(), TellingEnv()]
    batch = PlainBatch([lambda env=env: env for env in envs], 3)
    with pytest.raises(OSError, match="window"):
        batch.close()
    batch.close()
    assert [env.closed for env in envs] == [1, 1, 1]


def fail(_: object) -> Any:
    raise OSError("no more licenses")


@pytest.mark.parametrize(
    ("second", "error", "words"),
    [
        (lambda _: ActedEnv(Discrete(2)), ConfigError, r"number 0 .*Discrete\(2\)"),
        (lambda first: first, ConfigError, "same environment twice"),
        (fail, OSError, "no more licenses"),
    ],
)
def test_what_was_made_is_closed_if_a_batch_is_refused(
    second: Callable[[TellingEnv], Any], error: type[Exception], words: str
) -> None:
    first = TellingEnv()
    with pytest.raises(error, match=words):
        PlainBatch([lambda: first, lambda: second(first)], 2)
    assert first.closed == 1


class SpoiltNested(NestedEnv):
    """A nested environment whose observations after a reset are changed by a test."""

    def __init__(self, who: int, changes: dict[str, Any]) -> None:
        super().__init__(TellingEnv(who))
        self._changes = changes

    def observation(self, observation: Any) -> Any:
        observed = super().observation(observation)
        return observed | self._changes if observation[2] else observed


@pytest.mark.fault("F8", "F25")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"at": (np.array([256], np.uint16), [[2]])},
            r"field 'at/0' .*256.* declares \(1,\), uint8",
        ),
        ({"who": 100}, r"field 'who' of the observation 100 after action 3, .* from 0 to 99\."),
        ({"at": (1, 2, 3)}, r"its field 'at' must be a tuple of 2, got a tuple of 3\."),
    ],
)
def test_broken_promises_name_the_field(changes: dict[str, Any], message: str) -> None:
    makers = [*nested_makers([TERMINATING] * 3)]
    makers[1] = partial(SpoiltNested, 1, changes)
    with pytest.raises(EnvironmentFault, match=rf"environment 1 of 3 \(TellingEnv\) .*{message}"):
        step_twice(PlainBatch(makers, 3))


def test_fields_may_come_in_any_order_and_in_other_types_of_their_kind() -> None:
    other = {"drawn": 0.5, "who": np.int32(7), "at": [np.array([3], np.uint8), [[2]]]}
    batch = PlainBatch(partial(SpoiltNested, 1, other), 1)
    batch.reset(0)
    obs = batch.step(np.array([0])).obs
    assert isinstance(batch.spec.observation, PackedSpec)
    assert tell_nested(batch.spec.observation, obs).tolist() == [[7, 3, 2, 0.5]]


@pytest.mark.parametrize(("makers", "n_envs"), [(TellingEnv, 0), ([TellingEnv], 2)])
def test_number_of_environments_is_checked(makers: Any, n_envs: int) -> None:
    with pytest.raises(ConfigError, match=f"n_envs={n_envs}"):
        PlainBatch(makers, n_envs)
