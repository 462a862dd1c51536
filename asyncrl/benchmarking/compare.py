"""Results against a baseline's: what got worse, what cannot be compared. Measures nothing.

Only ratios to the limit are judged, never absolute speeds: these follow the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from asyncrl.benchmarking.machine import HARDWARE, differences
from asyncrl.benchmarking.result import Result


@dataclass(frozen=True, slots=True)
class _Pair:
    now: Result
    before: Result

    @property
    def change(self) -> float:
        """Return by which share of it the ratio has changed; negative is worse."""
        return self.now.ratio / self.before.ratio - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a comparison found, in words and as an exit code."""

    lines: tuple[str, ...]
    worse: tuple[str, ...]
    """Names of what got worse by more than the tolerance."""

    judged: int
    """How many results could be compared."""

    @property
    def exit_code(self) -> int:
        """Return 1 if something got worse, or if nothing could be compared; else 0."""
        return 1 if self.worse or not self.judged else 0


def compare(now: Sequence[Result], baseline: Sequence[Result], *, tolerance: float) -> Comparison:
    """Compare ratios; one may be worse by `tolerance`, as a share of the baseline's."""
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
    notes += [f"missing: {_named(before)} was not measured now" for before in missing]
    worse = [pair for pair in pairs if pair.change < -tolerance]
    lines = [_pair_line(pair, _widest(pairs), is_worse=pair in worse) for pair in pairs]
    return Comparison(
        lines=(*lines, *notes, _verdict(pairs, worse, tolerance)),
        worse=tuple(_named(pair.now) for pair in worse),
        judged=len(pairs),
    )


def _named(result: Result) -> str:
    return f"{result.name}, {result.env}, {result.unit}"


def _widest(pairs: Iterable[_Pair]) -> int:
    return max((len(_named(pair.now)) for pair in pairs), default=0)


def _pair_line(pair: _Pair, width: int, *, is_worse: bool) -> str:
    verdict = "WORSE" if is_worse else "ok"
    return (
        f"{_named(pair.now):<{width}}  {pair.before.ratio:7.1%} -> {pair.now.ratio:7.1%}  "
        f"{pair.change:+7.1%}  {verdict}"
    )


def _machine_notes(now: Sequence[Result], baseline: Sequence[Result]) -> Iterable[str]:
    """Say once for each pair of machines how they differ."""
    return {
        _machine_note(before, result): None
        for result in now
        for before in baseline
        if before.machine != result.machine
    }


def _machine_note(before: Result, now: Result) -> str:
    is_other = any(before.machine.get(name) != now.machine.get(name) for name in HARDWARE)
    words = "the baseline is of another machine" if is_other else "same machine, other versions"
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
