"""All callbacks of a run as one, which says of errors whose they are."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, SupportsFloat

from asyncrl.core.agent import as_number
from asyncrl.core.callback import Callback, Training
from asyncrl.core.env_checks import shown
from asyncrl.core.errors import ConfigError

_logger = logging.getLogger(__name__)


class Callbacks:
    """Calls each callback of a run in its turn."""

    def __init__(self, callbacks: Sequence[Callback], trainer: Training) -> None:
        self._callbacks = tuple(callbacks)
        self._trainer = trainer

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._callbacks)

    def begin(self) -> None:
        """Let each begin."""
        for callback in self._callbacks:
            with _naming(callback, "begin"):
                callback.begin(self._trainer)
        self.state()  # what cannot be saved is said now, and not in hours

    def step(self) -> None:
        """Let each act after a turn."""
        for callback in self._callbacks:
            with _naming(callback, "step"):
                callback.step(self._trainer)

    def record(self) -> dict[str, float]:
        """Return the numbers of all; of two of one name, those of the later one."""
        numbers: dict[str, float] = {}
        for callback in self._callbacks:
            with _naming(callback, "record"):
                metrics: object = callback.record(self._trainer)
                if not isinstance(metrics, Mapping):
                    raise ConfigError(
                        f"`record` must return numbers by name, got {shown(metrics)}; return for "
                        'instance {"mine/distance": 1.0}, or {} to tell nothing'
                    )
                numbers |= {name: as_number(name, value) for name, value in metrics.items()}
        return numbers

    def state(self) -> dict[str, list[object]]:
        """Return what each needs to go on, for a checkpoint; nothing if there are no callbacks."""
        states: list[object] = []
        for callback in self._callbacks:
            with _naming(callback, "state"):
                states.append([type(callback).__name__, _saved(callback.state(self._trainer))])
        return {"callbacks": states} if states else {}

    def restore(self, numbers: Mapping[str, Any]) -> None:
        """Hand each what the checkpoint holds of one of its class, in their order."""
        left = list(numbers.get("callbacks", ()))
        for callback in self._callbacks:
            name = type(callback).__name__
            kept = next((one for one in left if one[0] == name), None)
            if kept is not None:
                left.remove(kept)
                with _naming(callback, "restore"):
                    callback.restore(self._trainer, json.loads(kept[1]))
        for name, _ in left:
            _logger.warning(
                "the checkpoint holds the state of a callback %s, which this run has not", name
            )

    def end(self) -> None:
        """Let each act once learning is over."""
        for callback in self._callbacks:
            with _naming(callback, "end"):
                callback.end(self._trainer)

    def closing(self) -> Iterator[Callable[[], object]]:
        """Yield the steps that close them, in the opposite order."""
        for callback in reversed(self._callbacks):
            yield partial(self._close, callback)

    def _close(self, callback: Callback) -> None:
        with _naming(callback, "close"):
            callback.close(self._trainer)


def _saved(state: Mapping[str, Any]) -> str:
    """Return a state as text, in which numbers may be infinite, as a checkpoint's may not."""
    for name, value in state.items():
        try:
            json.dumps(value, default=_as_number)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"`state` returns {name}={value!r:.80}, which cannot be saved ({error}); it may "
                "hold numbers, text, None, and lists and dicts of these"
            ) from error
    return json.dumps(dict(state), default=_as_number)


def _as_number(value: object) -> float:
    """Return numpy's numbers, and arrays of one, as Python's."""
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
