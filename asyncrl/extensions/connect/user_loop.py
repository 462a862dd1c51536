"""Turns a loop that steps its own environment into the environment of an actor.

Two threads meet here. The user's calls `act` and `observe`; the actor's resets and steps its
environment, and waits for them there. An actor that must finish gets `NoAnswer` instead. Knows
nothing about networks and learners.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from asyncrl.actor.acting_model import NoAnswer
from asyncrl.actor.actor import Actor
from asyncrl.actor.process import ActorSpec
from asyncrl.core.env import SUCCESS, BoxSpec, DiscreteSpec, EnvSpec, EnvStep, PackedSpec
from asyncrl.core.errors import ConfigError, TransportError
from asyncrl.core.messages import Hello
from asyncrl.core.types import Array

_POLL_S = 0.1
_SUCCESS_KEYS = ("is_success", "success")
_NO_PLACE = "the learner has no place for this actor yet"
_HAS_PLACE = "the learner wants no more experience now, or is out of reach"


class UserLoop:
    """One environment, stepped by the user's thread. It serves one actor at a time."""

    def __init__(self, spec: EnvSpec, timeout_s: float) -> None:
        self.spec = spec
        """Observation and action spaces of the run."""
        self.why_waiting = _NO_PLACE
        """Why there is no action now; part of the error of a call that has waited for too long."""
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._actor: Actor | None = None
        self._obs: Array | None = None  # an action is wanted for it
        self._taken: Array | None = None  # the one that the actor has
        self._action: Array | None = None  # the answer
        self._before: Array | None = None  # the observation that the last action was for
        self._done: Array | None = None  # the action whose outcome is due
        self._counts = False  # the actor that chose it still runs
        self._outcome: EnvStep | None = None
        self._end: Exception | None = None

    # --- the user's thread ------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether the run has ended, or this connection was closed."""
        return self._end is not None

    def act(self, obs: object, *, timeout_s: float | None = None) -> Array:
        """Return the action for one observation: an array of the observation space.

        If an observation has several, it is a dict of them, with nested ones under `NAME/NAME`.

        Waits while the learner does not want more experience, or is out of reach; after the timeout
        it raises `TransportError`, and may be called again. Raises `TransportClosed` when the run
        has ended.
        """
        row = _row(obs, self.spec.observation, "an observation")
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        with self._changed:
            if self._done is not None:
                raise ConfigError("call observe with what the last action has led to, then act")
            if self._taken is not None and not np.array_equal(self._taken, row):
                raise ConfigError(
                    "an action for another observation is still awaited, after a timeout; call act "
                    f"with that one, {self._taken!r:.80}, until there is an action"
                )
            self._obs = row
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._action is not None or self._end, limit_s)
            if self._action is None:
                raise self._end or TransportError(
                    f"no action within {limit_s:g} s: {self.why_waiting}; call act again to wait "
                    "on with the same observation"
                )
            self._before, self._done = row, self._action
            self._obs = self._taken = self._action = None
            return self._done.copy()

    def override(self, action: object) -> None:
        """Replace the last action by what was done instead, as by a person who takes over.

        Call it between `act` and `observe`. The replaced action is stored and learned from. Not for
        agents that store more about an action than itself, as on-policy ones do.
        """
        spec = self.spec.action
        row = _row(action, spec, "an action")
        low, high = (0, spec.n - 1) if isinstance(spec, DiscreteSpec) else (spec.low, spec.high)
        if (isinstance(spec, DiscreteSpec) or spec.categorical) and (
            (row < low) | (row > high)
        ).any():
            raise ConfigError(f"an action must be from {low} to {high}, got {action!r:.80}")
        with self._changed:
            if self._done is None:
                raise ConfigError("call override between act and observe")
            self._done = row

    def observe(
        self,
        reward: float,
        terminated: bool = False,
        truncated: bool = False,
        info: Mapping[str, Any] | None = None,
        *,
        obs: object = None,
    ) -> None:
        """Report what the last action has led to; does not wait.

        The next `act` has the observation that followed, or the first one of the next episode.
        `obs` is the last one of an episode; it is required if the episode was truncated.
        `info["is_success"]` is recorded as in any environment.
        """
        last = None if obs is None else _row(obs, self.spec.observation, "an observation")
        if truncated and not terminated and last is None:
            raise ConfigError(
                "an episode that is truncated needs its last observation: observe(..., "
                "truncated=True, obs=OBS)"
            )
        if not np.isfinite(reward):
            raise ConfigError(f"reward must be finite, got {reward!r}")
        success = _success(info or {})
        with self._changed:
            if self._done is None or self._before is None:
                raise ConfigError("call act before observe")
            final = (self._before if last is None else last)[None]
            if self._counts:
                gain, over = np.array([reward], np.float32), np.array([bool(terminated)])
                cut, done = np.array([bool(truncated)]), self._done[None]
                info = success if terminated or truncated else None
                self._outcome = EnvStep(final, gain, over, cut, final, info=info, action=done)
            self._done = None
            self._changed.notify_all()

    def end(self, why: Exception) -> None:
        """Let `act` raise this from now on. Any thread."""
        with self._changed:
            self._end = self._end or why
            self._changed.notify_all()

    # --- the actor's thread -----------------------------------------------------------------------

    def make_env(self) -> _Env:
        """Return this loop as an actor sees it."""
        return _Env(self.spec, self._reset, self._step)

    def here(self, spec: ActorSpec) -> ActorSpec:
        """Return an actor of `make_env` that runs in a thread of this process."""
        return replace(spec, changes_env=False, owns_process=False, runs=self._run)

    def _run(self, actor: Actor, hello: Hello, seed: int) -> None:
        """Run an actor here: the user's thread answers it, until it ends."""
        self._serve(actor, _HAS_PLACE)
        try:
            with suppress(NoAnswer):  # it had to finish before the first observation came
                actor.run(hello, seed)
        finally:
            with self._changed:
                if self._actor is actor:  # else it was killed, and another one has begun
                    self._serve(None, _NO_PLACE)

    def _serve(self, actor: Actor | None, why_waiting: str) -> None:
        """Forget the actor before: what its last action leads to is ignored."""
        with self._changed:
            self._actor, self.why_waiting = actor, why_waiting
            self._taken = self._action = self._outcome = None
            self._counts = False

    def _reset(self, _: int) -> Array:
        """Wait for an observation."""
        self._wait(lambda: self._obs is not None, "an observation")
        with self._changed:
            assert self._obs is not None  # noqa: S101  # only an action for it ends it
            self._taken = self._obs
            return self._obs[None].copy()

    def _step(self, action: Array) -> EnvStep:
        """Hand an action over; wait for its outcome, and for the next observation."""
        with self._changed:
            self._action, self._counts = action[0], True
            self._changed.notify_all()
        self._wait(lambda: self._outcome is not None, "the outcome of an action")
        out = self._outcome
        assert out is not None  # noqa: S101  # it has waited for it
        self._outcome, self._counts = None, False
        ended = bool(out.terminated[0] or out.truncated[0])
        try:
            obs = self._reset(0)
        except NoAnswer:
            if not ended:
                raise
            obs = out.obs
        return out._replace(obs=obs, final_obs=out.final_obs if ended else obs)

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        """Wait, or raise `NoAnswer` if the actor must finish first."""
        while True:
            with self._changed:
                if self._changed.wait_for(ready, _POLL_S):
                    return
            if self._actor is None or not self._actor.may_wait():
                raise NoAnswer(f"{what} did not come")


@dataclass(frozen=True, slots=True)
class _Env:
    """The loop as an actor sees it."""

    checks_itself = True
    n_envs = 1

    spec: EnvSpec
    reset: Callable[[int], Array]
    step: Callable[[Array], EnvStep]

    def close(self) -> None:
        """Do nothing: the environment is the user's."""


def _row(given: object, spec: BoxSpec | PackedSpec | DiscreteSpec, what: str) -> Array:
    """Return a copy of what the user gave, in the dtype of its space."""
    if isinstance(spec, PackedSpec) and isinstance(given, Mapping):
        return spec.pack({name: _row(given.get(name), box, name) for name, box in spec.fields})
    found = np.asarray(given)
    row = found.astype(spec.dtype) if found.dtype.kind in "biuf" else None
    # Floats may be rounded, integers must be exact.
    exact = row is None or row.dtype.kind == "f" or np.array_equal(row, found)
    if row is None or not exact or found.shape != spec.shape:
        raise ConfigError(
            f"{what} must be {spec.dtype} of shape {spec.shape}, got {found.dtype} of shape "
            f"{found.shape}: {given!r:.80}"
        )
    if row.dtype.kind == "f" and not np.isfinite(row).all():
        raise ConfigError(f"{what} must be finite, got {given!r:.200}")
    return row


def _success(info: Mapping[str, Any]) -> Mapping[str, Array] | None:
    """Return the number of an episode that says whether it was a success, if its info has one."""
    found = next((info[key] for key in _SUCCESS_KEYS if key in info), None)
    try:
        return None if found is None else {SUCCESS: np.array([float(found)], np.float32)}
    except (TypeError, ValueError) as error:
        raise ConfigError(f"is_success of an info must be a number or a bool: {error}") from error
