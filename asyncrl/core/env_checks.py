"""Checks every step of environments that do not check themselves. Repairs nothing.

`envs/` checks the results of Gymnasium's environments, each as early as possible; a custom
`BatchEnv` is checked here. In both cases a faulty step raises, and is never stored in replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from asyncrl.core.env import BatchEnv, BoxSpec, EnvSpec, EnvStep, PackedSpec
from asyncrl.core.errors import EnvironmentFault
from asyncrl.core.types import Array, BoolArray

_SHOWN_VALUES = 8


def checked(env: BatchEnv) -> BatchEnv:
    """Return environments whose every step is checked.

    Environments with a true attribute `checks_itself`, such as all in `envs/`, are returned
    unchanged: they check themselves, with more precise messages.
    """
    return env if getattr(env, "checks_itself", False) else CheckedBatch(env)


class CheckedBatch:
    """Passes on the results of another batch if they fulfil `BatchEnv` and its spec.

    Arrays of another dtype of the same kind, such as rewards in float64, are converted; whole
    numbers only if they fit. Anything else raises `EnvironmentFault`. A step of 64 small
    environments takes 10 microseconds longer.
    """

    checks_itself = True

    def __init__(self, env: BatchEnv) -> None:
        self._env = env
        self._spec = env.spec
        self._n_envs = env.n_envs
        self._name = type(env).__name__
        observation = env.spec.observation
        self._shape = (env.n_envs, *observation.shape)
        self._dtype = np.dtype(observation.dtype)
        self._values = ValueChecks(self._name, env.n_envs, observation)

    @property
    def spec(self) -> EnvSpec:
        """Observation and action spaces of one of them."""
        return self._spec

    @property
    def n_envs(self) -> int:
        """Number of environments."""
        return self._n_envs

    def reset(self, seed: int) -> Array:
        """Reset all environments."""
        return self._obs("first observations", self._env.reset(seed), None)

    def step(self, action: Array) -> EnvStep:
        """Step all environments."""
        out = self._env.step(action)
        if not isinstance(out, EnvStep):
            raise EnvironmentFault(
                f"step of {self._name} returned {shown(out)}; return an `EnvStep`, see "
                "asyncrl/core/env.py"
            )
        obs = self._obs("observations", out.obs, action)
        final = out.final_obs
        return EnvStep(
            obs,
            self._numbers("rewards", out.reward, action),
            self._flags("terminated", out.terminated),
            self._flags("truncated", out.truncated),
            obs if final is out.obs else self._obs("last observations", final, action),
            None if out.stepped is None else self._flags("stepped", out.stepped),
            None if out.score is None else self._numbers("scores", out.score, action),
            None if out.over is None else self._flags("over", out.over),
            None if out.info is None else self._info(out.info),
            None if out.action is None else self._action(out.action, action),
        )

    def close(self) -> None:
        """Release their resources."""
        self._env.close()

    def _obs(self, what: str, value: Any, action: Array | None) -> Array:  # noqa: ANN401
        obs = self._fitting(what, value, self._shape, self._dtype, action)
        self._values.sound_obs(what, obs, action)
        return obs

    def _action(self, done: Any, action: Array) -> Array:  # noqa: ANN401
        return self._fitting("actions", done, action.shape, action.dtype, action)

    def _numbers(self, what: str, value: Any, action: Array) -> Array:  # noqa: ANN401
        numbers = self._fitting_numbers(what, value, action)
        self._values.finite(what, numbers, action)
        return numbers.copy()  # the environment may use its array again

    def _fitting_numbers(self, what: str, value: Any, action: Array | None = None) -> Array:  # noqa: ANN401
        return self._fitting(what, value, (self._n_envs,), np.dtype(np.float32), action)

    def _info(self, info: Any) -> dict[str, Array]:  # noqa: ANN401  # from foreign code
        if not isinstance(info, Mapping):
            raise EnvironmentFault(
                f"{self._name} gave info of type {type(info).__name__}; `EnvStep` requires a "
                "mapping of names to arrays. Return that, or None."
            )
        return {
            str(name): self._fitting_numbers(f"info {name!r}", row) for name, row in info.items()
        }

    def _flags(self, what: str, value: Any) -> BoolArray:  # noqa: ANN401
        flags = self._fitting(f"flags `{what}`", value, (self._n_envs,), np.dtype(bool), None)
        return flags.copy()  # as above

    def _fitting(
        self,
        what: str,
        value: Any,  # noqa: ANN401  # from foreign code
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        action: Array | None,
    ) -> Array:
        """Return a value as an array of this shape and dtype; raise if it is of another kind."""
        array = as_array(value)
        if array.shape == shape and array.dtype == dtype:
            return array
        if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise EnvironmentFault(
                f"{self._name} gave {what} of shape {array.shape} and dtype {array.dtype}"
                f"{'' if action is None else after(action)}; its spec, or `EnvStep`, promises "
                f"{shape}, {dtype}. Make it return that, or correct the spec."
            )
        with np.errstate(over="ignore"):  # overflow becomes infinity and is found later
            converted = array.astype(dtype)
        if dtype.kind in "iu" and not np.array_equal(converted, array):
            raise EnvironmentFault(
                f"{self._name} gave {what} from {array.min()} to {array.max()}, which are more "
                f"than {dtype} can hold, the dtype of its spec. Make it return smaller ones, or "
                "correct the spec."
            )
        return converted


class ValueChecks:
    """Checks of numbers in the right shape; cheap, since they run at every step."""

    def __init__(self, name: str, n_envs: int, observation: BoxSpec | PackedSpec) -> None:
        self._name = name
        self._n_envs = n_envs
        self._observation = observation
        fields = () if isinstance(observation, BoxSpec) else observation.fields
        self._doubtful = [
            (name, box)
            for name, box in fields
            if np.dtype(box.dtype).kind == "f" or box.categorical
        ]

    def place(self, env_id: int) -> str:
        """Return the name of an environment in messages."""
        return f"environment {env_id} of {self._n_envs} ({self._name})"

    def sound_obs(
        self, what: str, obs: Array, action: Array | None, env_ids: Array | None = None
    ) -> None:
        """Raise if an observation has a NaN or infinite value, or an invalid choice; see `finite`.

        Other numbers may exceed the bounds of their space, as in many environments.
        """
        if isinstance(self._observation, BoxSpec):
            self._sound(what, obs, self._observation, action, env_ids)
        elif self._doubtful:
            columns = self._observation.unpack(obs)
            for name, box in self._doubtful:
                field = f"field {name!r} of the {what}"
                self._sound(field, columns[name], box, action, env_ids)

    def finite(
        self, what: str, values: Array, action: Array | None, env_ids: Array | None = None
    ) -> None:
        """Raise `EnvironmentFault` if any value is NaN or infinite.

        Args:
            what: Name of the values in messages.
            values: One row per environment.
            action: The actions before; None after a reset.
            env_ids: Environments of the rows, if not all.
        """
        # uint8 images are skipped: they cannot be NaN, and are large. Counting takes half the time
        # of `all` on a small array.
        if values.dtype.kind != "f" or np.count_nonzero(np.isfinite(values)) == values.size:
            return
        wrong = ~np.isfinite(values.reshape(len(values), -1))
        row, env_id = _first(wrong, env_ids)
        raise EnvironmentFault(
            f"{self.place(env_id)} gave the {what} {shown(values[row])}, of which "
            f"{int(wrong[row].sum())} of {wrong.shape[1]} values are NaN or infinite"
            f"{after(None if action is None else action[env_id])}. One such value ruins a model "
            "for good. Look for a division by zero or an unstable simulation in the environment; "
            "end the episode before it happens, or wrap the environment to clip the value."
        )

    def _sound(
        self, what: str, values: Array, spec: BoxSpec, action: Array | None, env_ids: Array | None
    ) -> None:
        self.finite(what, values, action, env_ids)
        if not spec.categorical:
            return
        wrong = ((values < spec.low) | (values > spec.high)).reshape(len(values), -1)
        if not wrong.any():
            return
        row, env_id = _first(wrong, env_ids)
        raise EnvironmentFault(
            f"{self.place(env_id)} gave the {what} "
            f"{shown(values[row])}{after(None if action is None else action[env_id])}, but its "
            f"space has choices from {shown(spec.low)} to {shown(spec.high)}. A network would "
            "encode any other number as no choice at all. Make the environment return what its "
            "space declares, or correct the space."
        )


def _first(wrong: BoolArray, env_ids: Array | None) -> tuple[int, int]:
    """Return the first faulty row, and its environment."""
    row = int(np.flatnonzero(wrong.any(axis=1))[0])
    return row, row if env_ids is None else int(env_ids[row])


def shown(value: Any) -> str:  # noqa: ANN401  # whatever an environment or a policy gave
    """Return a value as one short line."""
    array = as_array(value)
    if array.dtype.kind not in "biufc":
        text = " ".join(repr(value).split())
        return text if len(text) <= 200 else text[:197] + "..."
    if array.size <= _SHOWN_VALUES:
        return str(array.tolist())
    first = ", ".join(str(x) for x in array.ravel()[:_SHOWN_VALUES].tolist())
    return f"[{first}, ...] ({array.size} values from {array.min()} to {array.max()})"


def as_array(value: Any) -> Array:  # noqa: ANN401  # whatever foreign code gave
    """Convert a value to an array; of objects, if nothing else is possible."""
    try:
        return np.asarray(value)
    except ValueError:  # lists of different lengths
        return np.asarray(value, object)
    except (RuntimeError, TypeError):  # tensors with gradients, on a device, or of unknown dtypes
        if hasattr(value, "detach") and getattr(value, "requires_grad", False):
            return as_array(value.detach())
        array = np.empty((), object)
        array[()] = value
        return array


def after(action: Any) -> str:  # noqa: ANN401  # a batch of actions, one of them, or none
    """Return the end of a sentence that says after which action something happened."""
    return " after reset" if action is None else f" after action {shown(action)}"
