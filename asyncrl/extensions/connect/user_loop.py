"""Turns a loop that steps its own environment into the environment of an actor.

Two threads meet here. The user's calls `act` and `observe`; the actor's calls `reset` and `step`,
which wait for them. An actor that must finish gets `NoAnswer` instead. Knows nothing about networks
and learners.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncrl.actor.acting_model import NoAnswer
from asyncrl.core.env import SUCCESS, BoxSpec, DiscreteSpec, EnvSpec, EnvStep
from asyncrl.core.errors import ConfigError, TransportError
from asyncrl.core.types import Array

_POLL_S = 0.1
_SUCCESS_KEYS = ("is_success", "success")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    reward: float
    terminated: bool
    truncated: bool
    success: Mapping[str, Array] | None
    last_obs: Array | None
    action: Array
    """What was done."""


class UserLoop:
    """One environment, stepped by the user's thread. `begin` starts each actor's use of it."""

    checks_itself = True
    n_envs = 1

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        self.why_waiting = ""
        """Why there is no action now; part of the error of a call that has waited for too long."""
        self._changed = threading.Condition()
        self._obs: Array | None = None  # an action is wanted for it
        self._taken = False  # the actor has it
        self._action: Array | None = None  # the answer
        self._done: Array | None = None  # the action whose outcome is due
        self._counts = False  # the actor that chose it still runs
        self._outcome: _Outcome | None = None
        self._end: Exception | None = None
        self._must_finish: Callable[[], bool] = lambda: False

    # --- the user's thread ------------------------------------------------------------------------

    def act(self, obs: object, timeout_s: float) -> Array:
        """Return the action for an observation."""
        row = self._as_obs(obs)
        with self._changed:
            if self._done is not None:
                raise ConfigError("call observe with what the last action has led to, then act")
            if self._obs is None or not self._taken:
                self._obs, self._taken = row, False
            elif not np.array_equal(self._obs, row):  # else the same call again, after a timeout
                raise ConfigError(
                    "an action for another observation is still awaited, after a timeout; call act "
                    f"with that one, {self._obs!r:.80}, until there is an action"
                )
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._action is not None or self._end, timeout_s)
            if self._action is None:
                raise self._end or TransportError(
                    f"no action within {timeout_s:g} s: {self.why_waiting}; call act again to wait "
                    "on with the same observation"
                )
            self._done, self._action, self._obs = self._action, None, None
            return self._done.copy()

    def override(self, action: object) -> None:
        """Replace the action whose outcome is due by the one that was done."""
        spec = self.spec.action
        given = np.asarray(action)
        row = given.astype(spec.dtype)
        # Floats may be rounded, integers must be exact.
        fits = np.isfinite(row).all() if row.dtype.kind == "f" else np.array_equal(row, given)
        if given.shape != spec.shape or given.dtype.kind not in "biuf" or not fits:
            raise ConfigError(
                f"an action must be {spec.dtype} of shape {spec.shape}, got {given.dtype} of shape "
                f"{given.shape}: {action!r:.80}"
            )
        if choices := _choices(spec):
            low, high = choices
            if (row < low).any() or (row > high).any():
                raise ConfigError(f"an action must be from {low} to {high}, got {action!r:.80}")
        with self._changed:
            if self._done is None:
                raise ConfigError("call override between act and observe")
            self._done = row

    def observe(
        self,
        reward: float,
        *,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
        obs: object,
    ) -> None:
        """Take the outcome of the last action."""
        last = None if obs is None else self._as_obs(obs)
        if truncated and not terminated and last is None:
            raise ConfigError(
                "an episode that is truncated needs its last observation: observe(..., "
                "truncated=True, obs=OBS)"
            )
        if not np.isfinite(reward):
            raise ConfigError(f"reward must be finite, got {reward!r}")
        try:
            success = _success(info)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"is_success of an info must be a number or a bool: {error}"
            ) from error
        with self._changed:
            if self._done is None:
                raise ConfigError("call act before observe")
            if self._counts:
                self._outcome = _Outcome(
                    reward=float(reward),
                    terminated=bool(terminated),
                    truncated=bool(truncated),
                    success=success,
                    last_obs=last,
                    action=self._done,
                )
            self._done = None
            self._changed.notify_all()

    def end(self, why: Exception) -> None:
        """Let `act` raise this from now on. Any thread."""
        with self._changed:
            self._end = self._end or why
            self._changed.notify_all()

    # --- the actor's thread -----------------------------------------------------------------------

    def begin(self, must_finish: Callable[[], bool]) -> None:
        """Serve another actor, which asks `must_finish` while it waits."""
        with self._changed:
            self._must_finish = must_finish
            self.leave(must_finish)

    def leave(self, must_finish: Callable[[], bool]) -> bool:
        """Forget an actor that has ended: what its last action leads to is ignored.

        Returns False, and does nothing, if another one has begun: the thread of one that was killed
        may end later.
        """
        with self._changed:
            if self._must_finish is not must_finish:
                return False
            self._taken = self._counts = False
            self._action = self._outcome = None
            return True

    def reset(self, seed: int) -> Array:
        """Wait for an observation."""
        if not self._wait(self._has_obs):
            raise NoAnswer("no observation came")
        return self._take_obs()

    def step(self, action: Array) -> EnvStep:
        """Hand an action over; wait for its outcome, and for the next observation."""
        with self._changed:
            before = self._obs
            assert before is not None  # noqa: S101  # `reset` or the last `step` has returned it
            self._action, self._counts = action[0], True
            self._changed.notify_all()
        if not self._wait(lambda: self._outcome is not None):
            raise NoAnswer("the outcome of an action did not come")
        out = self._outcome
        assert out is not None  # noqa: S101  # `_wait` has seen it
        ended, last = out.terminated or out.truncated, out.last_obs
        self._outcome, self._counts = None, False
        if self._wait(self._has_obs):
            obs = self._take_obs()
        elif ended:
            obs = (before if last is None else last)[None]
        else:
            raise NoAnswer("the observation after an action did not come")
        final = obs
        if ended:
            final = (before if last is None else last)[None]
        return EnvStep(
            obs,
            np.array([out.reward], np.float32),
            np.array([out.terminated]),
            np.array([out.truncated]),
            final,
            info=out.success if ended else None,
            action=out.action[None],
        )

    def close(self) -> None:
        """Do nothing: the environment is the user's."""

    def _has_obs(self) -> bool:
        return self._obs is not None and not self._taken

    def _take_obs(self) -> Array:
        with self._changed:
            assert self._obs is not None  # noqa: S101  # `_has_obs` was true, and only `act` ends it
            self._taken = True
            return self._obs[None].copy()

    def _wait(self, ready: Callable[[], bool]) -> bool:
        """Wait; return False if the actor must finish first."""
        while True:
            with self._changed:
                if self._changed.wait_for(ready, _POLL_S):
                    return True
            if self._must_finish():
                return False

    def _as_obs(self, obs: object) -> Array:
        spec = self.spec.observation
        shape, dtype = spec.shape, np.dtype(spec.dtype)
        given = np.asarray(obs)
        if given.shape != shape or given.dtype.kind not in "biuf":
            raise ConfigError(
                f"an observation must be {dtype} of shape {shape}, got {given.dtype} of shape "
                f"{given.shape}"
            )
        row = given.astype(dtype)
        if dtype.kind == "f" and not np.isfinite(row).all():
            raise ConfigError(f"an observation must be finite, got {obs!r:.200}")
        return row


def _choices(action: BoxSpec | DiscreteSpec) -> tuple[Array | int, Array | int] | None:
    """Return the first and last choices of an action; None if it is a quantity."""
    if isinstance(action, DiscreteSpec):
        return 0, action.n - 1
    return (action.low, action.high) if action.categorical else None


def _success(info: Mapping[str, Any]) -> Mapping[str, Array] | None:
    found = next((info[key] for key in _SUCCESS_KEYS if key in info), None)
    return None if found is None else {SUCCESS: np.array([float(found)], np.float32)}
