"""Results as a table for people. Measures nothing, prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import wrap

from asyncrl.benchmarking.machine import title
from asyncrl.benchmarking.result import Result

_QUIET_LOAD = 0.5
_WIDTH = 110
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def render(results: Sequence[Result]) -> str:
    """Return the machine, a line for each of the results, of which there is at least one."""
    columns = _columns(results)
    rows = [[cell(result) for _, _, cell in columns] for result in results]
    header = [name for name, _, _ in columns]
    aligns = [align for _, align, _ in columns]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(columns))]
    lines = [_line(header, widths, aligns), "  ".join("─" * width for width in widths)]
    lines += [_line(row, widths, aligns) for row in rows]
    head = [title(results[0].machine), _settings(results), _how(results), *_load_note(results)]
    wrapped = [line for text in head for line in wrap(text, _WIDTH, subsequent_indent="  ")]
    return "\n".join([*wrapped, "", *lines])


def _columns(results: Sequence[Result]) -> list[tuple[str, str, Callable[[Result], str]]]:
    """Return heading, alignment and content; columns that nobody needs are left out."""
    columns: list[tuple[str, str, Callable[[Result], str]]] = [
        ("stage", "<", lambda r: r.name),
        ("on", "<", lambda r: r.env),
        ("value", ">", lambda r: number(r.value)),
        ("limit", ">", lambda r: number(r.limit)),
        ("unit", "<", lambda r: r.unit),
        ("ratio", ">", lambda r: f"{r.ratio:.1%}"),
    ]
    if any(len(r.repeats) > 1 for r in results):
        columns.append(("min..max", ">", _spread))
    if any(r.frame_skip > 1 for r in results):
        columns.append(("frames/s", ">", _frames))
    if any(r.bytes_per_s is not None for r in results):
        columns.append(("bytes/s", ">", _bytes))
    return [*columns, ("limit is", "<", lambda r: r.limit_is)]


def _spread(result: Result) -> str:
    low, high = result.spread["ratio"]
    return f"{low:.0%}..{high:.0%}"


def _frames(result: Result) -> str:
    return "" if result.frames_per_s is None else number(result.frames_per_s)


def _bytes(result: Result) -> str:
    return "" if result.bytes_per_s is None else f"{scaled(result.bytes_per_s)}B"


def number(value: float) -> str:
    """Return a number with as many digits as are worth reading."""
    return f"{value:,.{0 if value >= 1000 else 1 if value >= 10 else 2}f}"


def scaled(value: float) -> str:
    """Return three digits and the prefix of a unit."""
    for factor, prefix in _PREFIXES:
        if value >= factor:
            short = value / factor
            return f"{short:.{0 if short >= 100 else 1 if short >= 10 else 2}f} {prefix}"
    return f"{value:.0f} "


def _line(cells: Sequence[str], widths: Sequence[int], aligns: Sequence[str]) -> str:
    padded = (
        f"{cell:{align}{width}}" for cell, width, align in zip(cells, widths, aligns, strict=True)
    )
    return "  ".join(padded).rstrip()


def _settings(results: Sequence[Result]) -> str:
    """Return what was set, each once; where stages differ in it, all that was."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        for name, value in result.settings.items():
            if value not in ({}, []):
                shown = "x".join(map(str, value)) if isinstance(value, list) else str(value)
                found.setdefault(name.replace("_", " "), {})[shown] = None
    return ", ".join(f"{name} {' or '.join(values)}" for name, values in found.items())


def _how(results: Sequence[Result]) -> str:
    rounds = sorted({len(result.repeats) for result in results})
    seconds = sorted({result.seconds for result in results})
    often = "one round" if rounds == [1] else f"medians of {_range(rounds)} rounds"
    each = f"{_range(seconds)} s each"
    return f"{often} of value and limit in turns, {each}; ratio is value / limit"


def _load_note(results: Sequence[Result]) -> list[str]:
    load = results[0].load_before  # later ones have our own load in them
    if load <= _QUIET_LOAD:
        return []
    return [
        f"the load was {load:.1f} before: something else was running, so speeds are too low; "
        "ratios suffer less"
    ]


def _range(values: Sequence[float]) -> str:
    return "..".join(f"{value:g}" for value in dict.fromkeys((values[0], values[-1])))
