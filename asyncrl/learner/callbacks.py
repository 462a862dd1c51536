"""All callbacks of a run as one object. It adds to errors which callback raised them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, SupportsFloat

from asyncrl.core.agent import as_number
from asyncrl.core.callback import Callback, Events, Training
from asyncrl.core.env_checks import shown
from asyncrl.core.errors import ConfigError

_logger = logging.getLogger(__name__)


class Callbacks:
    """Calls each callback of a run in order."""

    def __init__(self, callbacks: Sequence[Callback], trainer: Training) -> None:
        self._callbacks = tuple(callbacks)
        self._trainer = trainer

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._callbacks)

    def begin(self) -> None:
        """Call `begin` of each."""
        for callback in self._callbacks:
            with _naming(callback, "begin"):
                callback.begin(self._trainer)
        self.state()  # report now, not after hours, what cannot be saved

    def step(self, events: Events) -> None:
        """Call the methods for new events, and `step` of each after a training step."""
        self._dispatch(events)
        for callback in self._callbacks:
            with _naming(callback, "step"):
                callback.step(self._trainer)

    def record(self) -> dict[str, float]:
        """Return the metrics of all callbacks; a later callback overrides an earlier one."""
        numbers: dict[str, float] = {}
        for callback in self._callbacks:
            with _naming(callback, "record"):
                metrics: object = callback.record(self._trainer)
                if not isinstance(metrics, Mapping):
                    raise ConfigError(
                        f"`record` must return numbers by name, got {shown(metrics)}; return for "
                        f'instance {{"mine/distance": 1.0}}, or {{}} to record nothing'
                    )
                numbers |= {name: as_number(name, value) for name, value in metrics.items()}
        return numbers

    def state(self) -> dict[str, list[object]]:
        """Return the state of each callback for a checkpoint; empty without callbacks."""
        states: list[object] = []
        for callback in self._callbacks:
            with _naming(callback, "state"):
                states.append([type(callback).__name__, _saved(callback.state(self._trainer))])
        return {"callbacks": states} if states else {}

    def restore(self, numbers: Mapping[str, Any]) -> None:
        """Give each callback the saved state of its class, in their order."""
        left = list(numbers.get("callbacks", ()))
        for callback in self._callbacks:
            name = type(callback).__name__
            kept = next((one for one in left if one[0] == name), None)
            if kept is not None:
                left.remove(kept)
                with _naming(callback, "restore"):
                    callback.restore(self._trainer, json.loads(kept[1]))
        for name in (name for name, state in left if state != "{}"):
            _logger.warning(
                "the checkpoint contains the state of a callback %s, which this run does not have",
                name,
            )

    def end(self, events: Events) -> None:
        """Call the methods for new events, and `end` of each after the last optimisation step."""
        self._dispatch(events)
        for callback in self._callbacks:
            with _naming(callback, "end"):
                callback.end(self._trainer)

    def closing(self) -> Iterator[Callable[[], object]]:
        """Yield the steps that close them, in reverse order."""
        for callback in reversed(self._callbacks):
            yield partial(self._close, callback)

    def _dispatch(self, events: Events) -> None:
        while events:
            event, values = events.popleft()
            for callback in self._callbacks:
                with _naming(callback, event):
                    getattr(callback, event)(self._trainer, *values)

    def _close(self, callback: Callback) -> None:
        with _naming(callback, "close"):
            callback.close(self._trainer)


def _saved(state: Mapping[str, Any]) -> str:
    """Return a state as text. Its numbers may be infinite, unlike those of a checkpoint."""
    for name, value in state.items():
        try:
            json.dumps(value, default=_as_number)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"`state` returns {name}={value!r:.80}, which cannot be saved ({error}); use "
                "numbers, text, None, and lists and dicts of these"
            ) from error
    return json.dumps(dict(state), default=_as_number)


def _as_number(value: object) -> float:
    """Convert numpy's numbers, and arrays with one element, to Python's."""
    if isinstance(value, SupportsFloat):
        return float(value)
    raise TypeError(f"{type(value).__name__} is none of these")


@contextmanager
def _naming(callback: Callback, method: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by callback {type(callback).__qualname__}, in its `{method}`")
        raise
