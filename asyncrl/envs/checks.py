"""Checks of every step of every batch, and their error messages. Repairs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space

from asyncrl.core.env import BoxSpec, PackedSpec
from asyncrl.core.env_checks import ValueChecks, after, as_array, shown
from asyncrl.core.errors import ConfigError, EnvironmentFault
from asyncrl.core.types import Array, BoolArray
from asyncrl.envs.spaces import Parts


def of_api(method: str, answer: Any, where: str) -> Any:  # noqa: ANN401  # from foreign code
    """Return an environment's answer; raise if it does not hold what Gymnasium's API requires."""
    names, advice = _API[method]
    is_row = isinstance(answer, tuple | list)
    if is_row and len(answer) == len(names):
        return answer
    count = f"{len(answer)} values" if is_row else f"a single value, {shown(answer)}"
    raise EnvironmentFault(
        f"{method} of {where} returned {count.replace('1 values', '1 value')}; Gymnasium's API "
        f"requires {len(names)}: {', '.join(names)}. {advice}"
    )


_API = {
    "reset": (("observation", "info"), "Return `observation, {}`."),
    "step": (
        ("observation", "reward", "terminated", "truncated", "info"),
        "Return `terminated` and `truncated` separately.",
    ),
}
"""What the methods of an environment return, and what to do if they do not."""


def first_obs(env: Any, where: str, **how: Any) -> Any:  # noqa: ANN401  # from foreign code
    """Reset an environment, and return its first observation; raise if that breaks the API."""
    try:
        answer = env.reset(**how)
    except Exception as error:
        if isinstance(error, TypeError) and "reset() got an unexpected keyword" in str(error):
            raise EnvironmentFault(
                f"reset of {where} failed: {error}; Gymnasium's API requires `def reset(self, *, "
                "seed=None, options=None)`"
            ) from error
        error.add_note(f"asyncrl: in reset of {where}")
        raise
    return of_api("reset", answer, where)[0]


def flags_of(what: str, flags: Any, n_envs: int, name: str) -> BoolArray:  # noqa: ANN401
    """Return flags as a new array; raise if they are not one for each environment."""
    array = as_array(flags)
    if array.shape != (n_envs,) or array.dtype.kind not in "biuf":
        raise EnvironmentFault(
            f"{name} returned `{what}` of shape {array.shape}, {shown(flags)}; it must have shape "
            f"{(n_envs,)}, one bool for each environment."
        )
    return array.astype(bool)


def space_of(env: Any, name: str) -> Space[Any]:  # noqa: ANN401  # of either kind
    """Return a space of an environment; raise if it has none."""
    space = getattr(env, name, None)
    if not isinstance(space, Space):
        raise ConfigError(
            f"{type(env.unwrapped).__name__} has {name} {space!r:.80}, which is not a space of "
            f"gymnasium.spaces; set self.{name} when the environment is made"
        )
    return space


class Checks(ValueChecks):
    """The checks of one batch of Gymnasium environments."""

    def __init__(self, name: str, n_envs: int, spec: BoxSpec | PackedSpec, parts: Parts) -> None:
        super().__init__(name, n_envs, spec)
        self._packed = spec if isinstance(spec, PackedSpec) else None
        self._take_apart = parts
        fields = [("", spec)] if isinstance(spec, BoxSpec) else spec.fields
        self._parts = [_Part(field, box) for field, box in fields]

    def stack(self, rows: Sequence[Any], env_ids: Sequence[int], action: Array | None) -> Array:
        """Return observations as one new array; raise if any does not fit its space."""
        try:
            if self._packed is None:
                return self._parts[0].stack(rows)
            columns = zip(self._parts, self._take_apart(rows), strict=True)
            return self._packed.pack({part.name: part.stack(column) for part, column in columns})
        except (TypeError, ValueError, LookupError) as error:
            for env_id, row in zip(env_ids, rows, strict=True):
                if problem := self._problem(row, (), None if action is None else action[env_id]):
                    raise EnvironmentFault(f"{self.place(env_id)} gave {problem}") from error
            raise  # a bug of asyncrl, not of the environment

    def own(self, obs: Any, action: Array | None) -> Array:  # noqa: ANN401  # from foreign code
        """Return a batch of observations as a new array; raise if it does not fit the space."""
        if self._packed is None and self._parts[0].describes(obs, self._n_envs):
            copy: Array = obs.copy()  # in C order, whatever it was
            return copy
        if problem := self._problem(obs, (self._n_envs,), action):
            raise EnvironmentFault(f"{self._name} gave {problem}")
        if self._packed is None:
            return as_array(obs).astype(self._parts[0].dtype, order="C")
        columns = zip(self._parts, self._take_apart([obs]), strict=True)
        return self._packed.pack(
            {
                part.name: as_array(batch).astype(part.dtype, copy=False)
                for part, (batch,) in columns
            }
        )

    def reward(self, reward: Any, action: Array) -> Array:  # noqa: ANN401  # from foreign code
        """Return rewards as a new float32 array; raise if they are not one number each."""
        try:
            raw = np.asarray(reward)
            array = np.array(() if raw.dtype.kind in "USc" else raw, np.float32)
        except (TypeError, ValueError):
            array = np.empty(0, np.float32)
        if array.shape != (self._n_envs,):
            raise EnvironmentFault(
                f"{self._name}: the rewards of {self._n_envs} environments must be one number "
                f"each, got {shown(reward)}{after(action)}. Make the environment return a float."
            )
        return array

    def finite_reward(self, given: Any, reward: Array, action: Array) -> None:  # noqa: ANN401
        """Raise if any reward is NaN or infinite; None in `given` also counts as NaN."""
        try:
            self.finite("reward", reward, action)
        except EnvironmentFault:
            for env_id, (raw, value) in enumerate(zip(given, reward, strict=True)):
                if raw is None and np.isnan(value):
                    raise EnvironmentFault(
                        f"{self.place(env_id)} returned None as the reward{after(action[env_id])}. "
                        "Make its `step` return a float, 0.0 if there is no reward."
                    ) from None
            raise

    def flags(self, what: str, flags: Any) -> BoolArray:  # noqa: ANN401  # from foreign code
        """Return flags as a new array; raise if they are not one for each environment."""
        return flags_of(what, flags, self._n_envs, self._name)

    def _problem(self, obs: Any, lead: tuple[int, ...], action: Any) -> str | None:  # noqa: ANN401
        """Describe what is wrong with an observation, or with a batch, and how to fix it.

        `action` is the action before it: one, a batch of them, or None.
        """
        advice = "Make the environment return what its space declares, or correct the space."
        what = "observations" if lead else "an observation"
        if misfit := self._take_apart.misfit(obs):
            detail = after(action)
            return f"{what} not built as the observation space declares{detail}: {misfit}. {advice}"
        for part, (value,) in zip(self._parts, self._take_apart([obs]), strict=True):
            found, shape = as_array(value), (*lead, *part.shape)
            if found.shape != shape or not part.holds(found):
                field = f" with field {part.name!r}" if part.name else ""
                detail = "" if lead else f", {shown(value)}"
                return (
                    f"{what}{field} of shape {found.shape} and dtype "
                    f"{found.dtype}{detail}{after(action)}; its observation space declares "
                    f"{shape}, {part.dtype}. {advice}"
                )
        return None


class _Part:
    """One of the arrays that an observation consists of."""

    def __init__(self, name: str, spec: BoxSpec) -> None:
        self.name = name
        self.shape = spec.shape
        self.dtype = np.dtype(spec.dtype)

    def describes(self, found: Any, *lead: int) -> bool:  # noqa: ANN401  # from foreign code
        """Whether an array, or a batch of them, is exactly as declared: nearly every one is."""
        return (
            type(found) is np.ndarray
            and found.dtype == self.dtype
            and found.shape == (*lead, *self.shape)
        )

    def holds(self, found: Array) -> bool:
        """Whether values are of this kind, and integers within the range of the dtype."""
        if not np.can_cast(found.dtype, self.dtype, "same_kind"):
            return False
        same = found.dtype == self.dtype or self.dtype.kind not in "iu"
        return same or np.array_equal(found.astype(self.dtype), found)

    def stack(self, rows: Sequence[Any]) -> Array:
        """Return rows as one new array; raises `TypeError` or `ValueError` if they do not fit."""
        if len(rows) == 1 and self.describes(rows[0]):
            copy: Array = rows[0][None].copy()  # takes a fifth of the time of what follows
            return copy
        out = np.empty((len(rows), *self.shape), self.dtype)
        if not self.shape:
            array = np.array(rows)
            if array.shape != out.shape:
                raise ValueError(array.shape)
            np.copyto(out, array, casting="same_kind")
        else:
            # Concatenating along the first axis is much faster than stacking, and as strict once
            # each row has been checked: two wrong lengths may add up to a right one.
            length, *others = self.shape
            if {len(row) for row in rows} != {length}:
                raise ValueError([len(row) for row in rows])
            merged = out.reshape(len(rows) * length, *others)
            np.concatenate(rows, out=merged, casting="same_kind")
        if self.dtype.kind in "iu" and self._wrapped(rows, out):
            raise ValueError(rows)
        return out

    def _wrapped(self, rows: Sequence[Any], out: Array) -> bool:
        """Whether wide integers overflowed in narrow ones; quick if all dtypes are the same."""
        try:
            if {row.dtype for row in rows} == {self.dtype}:
                return False
        except AttributeError:
            pass  # lists, or numbers
        return not np.array_equal(out, np.array(rows).reshape(out.shape))
