"""What every batch checks of every step, and how it says what is wrong. Repairs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrl.env import BoxSpec, PackedSpec
from asyncrl.envs._spaces import Parts
from asyncrl.errors import EnvironmentFault
from asyncrl.types import Array, BoolArray

__all__ = ["Checks", "shown"]

_SHOWN_VALUES = 8


class Checks:
    """The checks of one batch of environments; cheap, because they run at every step."""

    def __init__(self, name: str, n_envs: int, spec: BoxSpec | PackedSpec, parts: Parts) -> None:
        self._name = name
        self._n_envs = n_envs
        self._packed = spec if isinstance(spec, PackedSpec) else None
        self._take_apart = parts
        fields = [("", spec)] if isinstance(spec, BoxSpec) else spec.fields
        self._parts = [_Part(field, box) for field, box in fields]

    def place(self, env_id: int) -> str:
        """Name an environment for people."""
        return f"environment {env_id} of {self._n_envs} ({self._name})"

    def stack(self, rows: Sequence[Any], env_ids: Sequence[int], action: Array | None) -> Array:
        """Return observations as one new array, or raise if any does not fit its space."""
        try:
            if self._packed is None:
                return self._parts[0].stack(rows)
            columns = zip(self._parts, self._take_apart(rows), strict=True)
            return self._packed.pack({part.name: part.stack(column) for part, column in columns})
        except (TypeError, ValueError, LookupError) as error:
            for env_id, row in zip(env_ids, rows, strict=True):
                if problem := self._problem(row, (), None if action is None else action[env_id]):
                    raise EnvironmentFault(f"{self.place(env_id)} gave {problem}") from error
            raise  # a bug of ours, not of the environment

    def own(self, obs: Any, action: Array | None) -> Array:  # noqa: ANN401  # from foreign code
        """Return a batch of observations as a new array, or raise if it does not fit the space."""
        if self._packed is None and self._parts[0].describes(obs, self._n_envs):
            copy: Array = obs.copy()  # in C order, whatever it was
            return copy
        if problem := self._problem(obs, (self._n_envs,), action):
            raise EnvironmentFault(f"{self._name} gave {problem}")
        if self._packed is None:
            return _as_array(obs).astype(self._parts[0].dtype, order="C")
        columns = zip(self._parts, self._take_apart([obs]), strict=True)
        return self._packed.pack(
            {
                part.name: _as_array(batch).astype(part.dtype, copy=False)
                for part, (batch,) in columns
            }
        )

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

    def finite_obs(
        self, what: str, obs: Array, action: Array | None, env_ids: Array | None = None
    ) -> None:
        """Raise if any value of these observations is NaN or infinite; see `finite`."""
        if self._packed is None:
            self.finite(what, obs, action, env_ids)
            return
        for name, values in self._packed.unpack(obs).items():
            if values.dtype.kind == "f":
                self.finite(f"field {name!r} of the {what}", values, action, env_ids)

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

    def _problem(self, obs: Any, lead: tuple[int, ...], action: Any) -> str | None:  # noqa: ANN401
        """Say what is wrong with an observation, or with a batch of them, and what would help.

        `action` is what came before: one, a batch of them, or None.
        """
        advice = "Make the environment return what its space says, or correct the space."
        what = "observations" if lead else "an observation"
        if misfit := self._take_apart.misfit(obs):
            told = _after(action)
            return f"{what} not built as the observation space says{told}: {misfit}. {advice}"
        for part, (value,) in zip(self._parts, self._take_apart([obs]), strict=True):
            found, shape = _as_array(value), (*lead, *part.shape)
            if found.shape != shape or not np.can_cast(found.dtype, part.dtype, "same_kind"):
                field = f" with field {part.name!r}" if part.name else ""
                told = "" if lead else f", {shown(value)}"
                return (
                    f"{what}{field} of shape {found.shape} and dtype {found.dtype}{told}"
                    f"{_after(action)}; its observation space promises {shape}, {part.dtype}. "
                    f"{advice}"
                )
        return None


class _Part:
    """One of the arrays that an observation consists of."""

    def __init__(self, name: str, spec: BoxSpec) -> None:
        self.name = name
        self.shape = spec.shape
        self.dtype = np.dtype(spec.dtype)

    def describes(self, batch: Any, n_envs: int) -> bool:  # noqa: ANN401  # from foreign code
        """Tell, at once, whether a batch is just what is promised: most are, at every step."""
        return (
            type(batch) is np.ndarray
            and batch.dtype == self.dtype
            and batch.shape == (n_envs, *self.shape)
        )

    def stack(self, rows: Sequence[Any]) -> Array:
        """Return rows as one new array; raises `TypeError` or `ValueError` if they do not fit."""
        out = np.empty((len(rows), *self.shape), self.dtype)
        if not self.shape:
            array = np.array(rows)
            if array.shape != out.shape:
                raise ValueError(array.shape)
            np.copyto(out, array, casting="same_kind")
        else:
            # Concatenating along the first axis is much quicker than stacking, and as strict once
            # each row has been measured: two wrong lengths may add up to a right one.
            length, *others = self.shape
            if {len(row) for row in rows} != {length}:
                raise ValueError([len(row) for row in rows])
            merged = out.reshape(len(rows) * length, *others)
            np.concatenate(rows, out=merged, casting="same_kind")
        return out


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
