"""What was found, as a table for a page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from benchmarks.chaos.peers.cell import SIDES, Cell
from benchmarks.chaos.peers.findings import Kept
from benchmarks.chaos.peers.verdict import ACTORS, Finding

BEGIN = "<!-- faults elsewhere: written by benchmarks.chaos.peers -->"
END = "<!-- end of faults elsewhere -->"

_FAULTS = {
    "kill": "`kill -9`",
    "raise": "the environment raises",
    "hang": "the environment hangs",
    "nan": "one step of NaN",
}

_HEAD = ["what happened", "after", "longest pause", "experience", "exit code", "told"]


def render(cells: Iterable[Cell], found: Mapping[str, Kept]) -> str:
    """Return one table for each fault, and what was measured with what."""
    every = list(cells)
    known = [cell for cell in every if cell.name in found]
    lines: list[str] = []
    for fault in dict.fromkeys(cell.fault for cell in known):
        rows = [_row(cell, found.get(cell.name)) for cell in every if cell.fault == fault]
        head = [_line([f"**{_FAULTS[fault]}**", *_HEAD]), _line(["---"] * (len(_HEAD) + 1))]
        lines += ["", *head, *rows]
    return "\n".join([*lines, "", *_origin(known, found), ""])


def _row(cell: Cell, kept: Kept | None) -> str:
    label = SIDES[cell.side].label + (" (careful)" if cell.careful else "")
    if kept is None:
        return _line([label, "not measured", *[""] * (len(_HEAD) - 1)])
    finding = kept.finding
    return _line(
        [
            label,
            _outcome(finding),
            f"{finding.after_s:.1f} s",
            "" if finding.outcome == "ended" else f"{finding.pause_s:.1f} s",
            _experience(finding),
            "killed by us" if finding.exit_code is None else str(finding.exit_code),
            _told(cell, finding),
        ]
    )


def _outcome(finding: Finding) -> str:
    match finding.outcome:
        case "recovered":
            return "**recovered**"
        case "ended":
            return "run over"
        case "hung":
            return "hung"
        case "short":
            halting = " by fits and starts" if finding.pause_s > finding.after_s / 4 else ""
            return f"went on{halting}, with {ACTORS - 1} of {ACTORS}"
        case _:
            how = "" if finding.told else " in silence"
            return f"went on{how}, and learned from it"


def _experience(finding: Finding) -> str:
    if finding.bad_params:
        return f"{finding.bad_rows} bad rows learned from, **the model is NaN**"
    if finding.bad_rows:
        return f"{finding.bad_rows} bad rows learned from"
    if finding.outcome in {"ended", "hung"}:
        return f"{_steps(finding.lost)} never learned from"
    return f"{_steps(finding.lost)} lost"


def _told(cell: Cell, finding: Finding) -> str:
    if not finding.told:
        return "nothing"
    told = f"`{finding.told.replace('|', '/').replace('`', chr(39))}`"
    hidden = cell.fault == "raise" and finding.cause == "screen" and finding.outcome == "ended"
    return f"{told}; the cause is on the screen" if hidden else told


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count:,} steps"


def _framework(cell: Cell) -> str:
    return SIDES[cell.side].label.partition(",")[0]


def _origin(known: list[Cell], found: Mapping[str, Kept]) -> list[str]:
    versions: dict[str, str] = {}
    dates, machines = set(), set()
    loads = [found[cell.name].load_before for cell in known]
    for cell in known:
        kept = found[cell.name]
        versions[_framework(cell)] = kept.version
        dates.add(kept.date)
        machines.add(", ".join(str(kept.machine[name]) for name in ("processor", "platform")))
    if not versions:
        return []
    careful = {_framework(cell): SIDES[cell.side].means for cell in known if cell.careful}
    shown = ", ".join(f"{label} {version}" for label, version in versions.items())
    busy = f"others used it as well, load {min(loads):.0f} to {max(loads):.0f}"
    return [
        *(f"{framework}, careful: {means}.  " for framework, means in careful.items()),
        f"Measured: {', '.join(sorted(dates))}, one run each, with {shown}.  ",
        f"On: {'; '.join(sorted(machines))}; {busy}.",
    ]


def _line(values: Iterable[str]) -> str:
    return f"| {' | '.join(values)} |"
