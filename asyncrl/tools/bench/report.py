"""Formats results as a table. Measures nothing, prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from asyncrl.tools.bench.result import HARDWARE, Result, differences, title

_QUIET_LOAD = 0.5
_WIDTH = 110
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def render(results: Sequence[Result]) -> str:
    """Return a line about the machine and one line per result; needs at least one result."""
    columns = _columns(results)
    rows = [[cell(result) for _, _, cell in columns] for result in results]
    header = [name for name, _, _ in columns]
    aligns = [align for _, align, _ in columns]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(columns))]
    lines = [_line(header, widths, aligns), "  ".join("-" * width for width in widths)]
    lines += [_line(row, widths, aligns) for row in rows]
    head = [title(results[0].machine), _settings(results), _how(results), *_load_note(results)]
    wrapped = [line for text in head for line in wrap(text, _WIDTH, subsequent_indent="  ")]
    return "\n".join([*wrapped, "", *lines])


def _columns(results: Sequence[Result]) -> list[tuple[str, str, Callable[[Result], str]]]:
    """Return heading, alignment and content of the columns that the results need."""
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
    """Format a number with its significant digits."""
    return f"{value:,.{0 if value >= 1000 else 1 if value >= 10 else 2}f}"


def scaled(value: float) -> str:
    """Format a number with three digits and a unit prefix."""
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
    """Return each setting once; where stages differ in it, all of its values."""
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
    load = results[0].load_before  # later ones include the load of the benchmark itself
    if load <= _QUIET_LOAD:
        return []
    return [
        f"the load was {load:.1f} before: other programs were running, so speeds are too low; "
        "ratios suffer less"
    ]


def _range(values: Sequence[float]) -> str:
    return "..".join(f"{value:g}" for value in dict.fromkeys((values[0], values[-1])))


@dataclass(frozen=True, slots=True)
class _Pair:
    now: Result
    before: Result

    @property
    def change(self) -> float:
        """Return the relative change of the ratio; negative is worse."""
        return self.now.ratio / self.before.ratio - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of a comparison, as text and exit code."""

    lines: tuple[str, ...]
    worse: tuple[str, ...]
    """Names of results that got worse by more than the tolerance."""

    judged: int
    """Number of results that could be compared."""

    @property
    def exit_code(self) -> int:
        """Return 1 if something got worse, or if nothing could be compared; else 0."""
        return 1 if self.worse or not self.judged else 0


def compare(now: Sequence[Result], baseline: Sequence[Result], *, tolerance: float) -> Comparison:
    """Compare ratios; `tolerance` is the relative loss that is accepted."""
    pairs: list[_Pair] = []
    notes = list(_machine_notes(now, baseline))
    for result in now:
        alike = [before for before in baseline if before.key == result.key]
        same = [before for before in alike if before.settings == result.settings]
        if same:
            pairs.append(_Pair(result, same[-1]))
        elif alike:
            notes.append(f"not compared: {_named(result)}, {_settings_note(alike[-1], result)}")
        else:
            notes.append(f"new: {_named(result)} is not in the baseline")
    measured = {result.key for result in now}
    missing = (before for before in baseline if before.key not in measured)
    notes += [f"missing: {_named(before)} was not measured this time" for before in missing]
    worse = [pair for pair in pairs if pair.change < -tolerance]
    width = max((len(_named(pair.now)) for pair in pairs), default=0)
    lines = [_pair_line(pair, width, is_worse=pair in worse) for pair in pairs]
    return Comparison(
        lines=(*lines, *notes, _verdict(pairs, worse, tolerance)),
        worse=tuple(_named(pair.now) for pair in worse),
        judged=len(pairs),
    )


def _named(result: Result) -> str:
    return f"{result.name}, {result.env}, {result.unit}"


def _pair_line(pair: _Pair, width: int, *, is_worse: bool) -> str:
    return (
        f"{_named(pair.now):<{width}}  {pair.before.ratio:7.1%} -> {pair.now.ratio:7.1%}  "
        f"{pair.change:+7.1%}  {'WORSE' if is_worse else 'ok'}"
    )


def _machine_notes(now: Sequence[Result], baseline: Sequence[Result]) -> Iterable[str]:
    """Describe once how each pair of machines differs."""
    return {
        _machine_note(before, result): None
        for result in now
        for before in baseline
        if before.machine != result.machine
    }


def _machine_note(before: Result, now: Result) -> str:
    is_other = any(before.machine.get(name) != now.machine.get(name) for name in HARDWARE)
    words = "the baseline is from another machine" if is_other else "same machine, other versions"
    return f"{words}: {'; '.join(differences(before.machine, now.machine))}"


def _settings_note(before: Result, now: Result) -> str:
    names = dict.fromkeys([*now.settings, *before.settings])
    changed = [
        f"{name} {before.settings.get(name)} -> {now.settings.get(name)}"
        for name in names
        if before.settings.get(name) != now.settings.get(name)
    ]
    return f"other settings: {', '.join(changed)}"


def _verdict(pairs: Sequence[_Pair], worse: Sequence[_Pair], tolerance: float) -> str:
    if not pairs:
        return "nothing could be compared: the baseline has none of these measurements"
    if not worse:
        return f"nothing got worse by more than {tolerance:.0%} ({len(pairs)} compared)"
    names = "; ".join(_named(pair.now) for pair in worse)
    return f"worse by more than {tolerance:.0%}: {names}"
