"""What every batch checks of every step, and how it says what is wrong. Repairs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from asyncrl.env import BoxSpec
from asyncrl.errors import EnvironmentFault
from asyncrl.types import Array, BoolArray

__all__ = ["Checks", "shown"]

_SHOWN_VALUES = 8


class Checks:
    """The checks of one batch of environments; cheap, because they run at every step."""

    def __init__(self, name: str, n_envs: int, spec: BoxSpec) -> None:
        self._name = name
        self._n_envs = n_envs
        self._spec = spec
        self._dtype = np.dtype(spec.dtype)
        # Concatenating along the first axis is much quicker than stacking, and as strict once
        # each row has been measured: two wrong lengths may add up to a right one.
        self._merged = (-1, *spec.shape[1:]) if spec.shape else None

    def place(self, env_id: int) -> str:
        """Name an environment for people."""
        return f"environment {env_id} of {self._n_envs} ({self._name})"

    def stack(self, rows: Sequence[Any], env_ids: Sequence[int], action: Array | None) -> Array:
        """Return observations as one new array, or raise if any does not fit its space."""
        try:
            return self._stack(rows)
        except (TypeError, ValueError) as error:
            self._blame(rows, env_ids, action, error)

    def own(self, obs: Any, action: Array | None) -> Array:  # noqa: ANN401  # from foreign code
        """Return a batch of observations as a new array, or raise if it does not fit the space."""
        array = _as_array(obs)
        expected = (self._n_envs, *self._spec.shape)
        if array.shape != expected or not np.can_cast(array.dtype, self._dtype, "same_kind"):
            raise EnvironmentFault(
                f"{self._name} gave observations of shape {array.shape} and dtype {array.dtype}"
                f"{_after(action)}; its observation space promises {expected}, {self._dtype}. "
                "Make the environment return what its space says, or correct the space."
            )
        return array.astype(self._dtype)

    def reward(self, reward: Any, action: Array) -> Array:  # noqa: ANN401  # from foreign code
        """Return rewards as a new float32 array, or raise if they are not one number each."""
        try:
            array = np.array(reward, np.float32)
        except (TypeError, ValueError):
            array = np.empty(0, np.float32)
        if array.shape != (self._n_envs,):
            raise EnvironmentFault(
                f"{self._name}: the rewards of {self._n_envs} environments must be one number "
                f"each, got {shown(reward)}{_after(action)}. Make the environment return a float."
            )
        return array

    def flags(self, what: str, flags: Any) -> BoolArray:  # noqa: ANN401  # from foreign code
        """Return flags as a new array, or raise if they are not one for each environment."""
        array = np.array(flags, bool)
        if array.shape != (self._n_envs,):
            raise EnvironmentFault(
                f"{self._name} gave `{what}` of shape {array.shape}, {shown(flags)}; it must have "
                f"shape {(self._n_envs,)}, one flag for each environment."
            )
        return array

    def finite(
        self, what: str, values: Array, action: Array | None, env_ids: Array | None = None
    ) -> None:
        """Raise if any value is NaN or infinite; `env_ids` are the rows', if not all of them."""
        # uint8 images are left out: there is nothing to find, and they are large.
        # Counting takes half the time of `all` on a small array.
        if values.dtype.kind != "f" or np.count_nonzero(np.isfinite(values)) == values.size:
            return
        wrong = ~np.isfinite(values.reshape(len(values), -1))
        row = int(np.flatnonzero(wrong.any(axis=1))[0])
        env_id = row if env_ids is None else int(env_ids[row])
        raise EnvironmentFault(
            f"{self.place(env_id)} gave the {what} {shown(values[row])}, of which "
            f"{int(wrong[row].sum())} of {wrong.shape[1]} values are NaN or infinite"
            f"{_after(None if action is None else action[env_id])}. One such value ruins a model "
            "for good. Look for a division by zero or an unstable simulation in the environment; "
            "end the episode before it happens, or wrap the environment to clip the value."
        )

    def _stack(self, rows: Sequence[Any]) -> Array:
        out = np.empty((len(rows), *self._spec.shape), self._dtype)
        if self._merged is None:
            array = np.array(rows)
            if array.shape != out.shape:
                raise ValueError(array.shape)
            np.copyto(out, array, casting="same_kind")
        else:
            if {len(row) for row in rows} != {self._spec.shape[0]}:
                raise ValueError([len(row) for row in rows])
            np.concatenate(rows, out=out.reshape(self._merged), casting="same_kind")
        return out

    def _blame(
        self,
        rows: Sequence[Any],
        env_ids: Sequence[int],
        action: Array | None,
        error: Exception,
    ) -> NoReturn:
        for env_id, row in zip(env_ids, rows, strict=True):
            found = _as_array(row)
            fits = np.can_cast(found.dtype, self._dtype, "same_kind")
            if found.shape != self._spec.shape or not fits:
                after = _after(None if action is None else action[env_id])
                raise EnvironmentFault(
                    f"{self.place(env_id)} gave an observation of shape {found.shape} and dtype "
                    f"{found.dtype}, {shown(row)}{after}; its observation space promises "
                    f"{self._spec.shape}, {self._dtype}. Make the environment return what its "
                    "space says, or correct the space."
                ) from error
        raise error  # a bug of ours, not of the environment


def shown(value: Any) -> str:  # noqa: ANN401  # whatever an environment or a policy gave
    """Return a value in one line that stays short."""
    array = _as_array(value)
    if array.dtype.kind not in "biufc":
        text = " ".join(repr(value).split())
        return text if len(text) <= 200 else text[:197] + "..."
    if array.size <= _SHOWN_VALUES:
        return str(array.tolist())
    first = ", ".join(str(x) for x in array.ravel()[:_SHOWN_VALUES].tolist())
    return f"[{first}, ...] ({array.size} values from {array.min()} to {array.max()})"


def _as_array(value: Any) -> Array:  # noqa: ANN401  # whatever foreign code gave
    try:
        return np.asarray(value)
    except ValueError:  # lists of different lengths
        return np.asarray(value, object)


def _after(action: Any) -> str:  # noqa: ANN401  # a batch of actions, one of them, or none
    return " after reset" if action is None else f" after action {shown(action)}"
