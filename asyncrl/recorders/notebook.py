"""The progress of a run in a Jupyter notebook: a bar, the newest numbers and a learning curve.

Plain HTML, replaced in place with each record. IPython, which every notebook has, shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

from asyncrl.core.errors import ConfigError
from asyncrl.core.recorder import Record, axis_of
from asyncrl.recorders.memory import MemoryRecorder
from asyncrl.recorders.run_state import RunState, count, duration

_CURVES = {"episode/return_mean": "#e69f00", "eval_reward": "#0072b2"}
_NAMES = {"episode/return_mean": "training", "eval_reward": "evaluation"}
_MOST_POINTS = 300
_WIDTH, _HEIGHT = 560, 160


class NotebookRecorder(MemoryRecorder):
    """Shows a run below the cell that trains, and keeps its records as `MemoryRecorder` does.

    Args:
        limits: Metrics and the values at which the run stops, such as `{"env_steps": 50_000}`;
            the bar shows the one that is nearest. `stop.limits()` gives them.
        target: A metric and the value at which the run stops, such as `("eval_reward", 475.0)`.
        show: Shows HTML in place of what it showed before. None lets IPython do it.
    """

    def __init__(
        self,
        *,
        limits: Mapping[str, float] | None = None,
        target: tuple[str, float] | None = None,
        show: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__()
        self._state = RunState(limits or {}, target)
        self._show = show or _shown_by_ipython()

    def resume_at(self, *, env_steps: int, opt_steps: int) -> None:
        self._state.resume_at(env_steps=env_steps, opt_steps=opt_steps)

    def start(self, config: Mapping[str, object]) -> None:
        super().start(config)
        self._show("<p>the run begins</p>")

    def write(self, record: Record) -> None:
        super().write(record)
        self._state.update(record)
        self._show(self.html())

    def close(self, *, failed: bool) -> None:
        if self.failed is None:
            self._state.finish("failed" if failed else "done")
            self._show(self.html())
        super().close(failed=failed)

    def html(self) -> str:
        """Return what is shown now."""
        return f"<div>{self._bar()}{self._numbers()}{self._curve()}</div>"

    def _bar(self) -> str:
        state = self._state
        left = "" if state.eta_s is None or state.ended else f", {duration(state.eta_s)} left"
        words = escape(f"{state.ended or 'training'}, {duration(state.wall_s)}{left}")
        done = state.fraction
        if done is None:
            return f"<p>{words}</p>"
        return f"<p><progress value={done:.3f} max=1></progress> {words}</p>"

    def _numbers(self) -> str:
        values = self._state.values
        cells = {
            "env steps": count(values.get("env_steps", 0.0)),
            "opt steps": count(values.get("opt_steps", 0.0)),
            "env steps/s": count(values["fps"]) if "fps" in values else "-",
            "training": _number(values.get("episode/return_mean")),
            "evaluation": _number(values.get("eval_reward")),
        }
        if self._state.target is not None:
            cells["target"] = _number(self._state.target[1])
        head = "".join(f"<th>{escape(name)}</th>" for name in cells)
        row = "".join(f"<td>{escape(value)}</td>" for value in cells.values())
        return f"<table><tr>{head}</tr><tr>{row}</tr></table>"

    def _curve(self) -> str:
        """Return the returns over the steps of the run as a drawing."""
        lines = {name: self._points(name) for name in _CURVES}
        points = [point for line in lines.values() for point in line]
        if len(points) < 2:
            return ""
        (left, right), (low, high) = ((min(axis), max(axis)) for axis in zip(*points, strict=True))
        across, up = _WIDTH / (right - left or 1.0), _HEIGHT / (high - low or 1.0)
        drawn = "".join(
            f'<polyline fill="none" stroke="{_CURVES[name]}" stroke-width="2" points="'
            + " ".join(f"{(x - left) * across:.1f},{(high - y) * up:.1f}" for x, y in line)
            + '"/>'
            for name, line in lines.items()
        )
        names = ", ".join(
            f'<span style="color:{colour}">{_NAMES[name]}</span>'
            for name, colour in _CURVES.items()
        )
        return (
            f'<svg viewBox="-4 -4 {_WIDTH + 8} {_HEIGHT + 8}" width="{_WIDTH}" role="img" '
            f'aria-label="return of an episode">{drawn}</svg>'
            f"<p>return of an episode, {_number(low)} to {_number(high)}: {names}</p>"
        )

    def _points(self, name: str) -> list[tuple[float, float]]:
        found = [(r[axis_of(r)], r[name]) for r in self.records if name in r]
        step = max(1, len(found) // _MOST_POINTS)
        return found[::step]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _shown_by_ipython() -> Callable[[str], object]:
    try:
        from IPython.display import HTML, DisplayHandle
    except ImportError as error:
        raise ConfigError(
            "NotebookRecorder shows progress in a notebook, and IPython is not installed; in a "
            "script use TerminalRecorder"
        ) from error
    handle = DisplayHandle()
    begun = False

    def show(html: str) -> None:
        nonlocal begun
        (handle.update if begun else handle.display)(HTML(html))
        begun = True

    return show
