"""Writes the results into the pages that show them, as tables between two marks.

All of them go to the README.md of this folder, and those that `PICKS` names to README.md and the
site's page on performance.

python -m benchmarks.make_table
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import PAGE, ROOT, is_clean, make_parser, publish

MARKS = "<!-- results: written by make_table.py -->", "<!-- end of results -->"

_HEAD = [
    "| measured / baseline | ratio | range, n | asyncrl | baseline | unit | date, commit, load |",
    "| --- | --- | --- | --- | --- | --- | --- |",
]


_PICKED_HEAD = [
    "| measured / baseline | asyncrl | baseline | ratio (range, n) | CPU, commit |",
    "|---|---|---|---|---|",
]

_TWO = "bare loop on 2 processes"
_SYNC = "DQN on CartPole-v1, asynchronous / synchronous"
_SAC, _DQN = "SAC 256x256, batches of 256", "DQN 64x64, batches of 128"
_PER = "sample 256 of 1,000,000 by priority and update them"

PICKS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "README.md": {
        "speed": [
            f"2 actors of 256 CartPoles / {_TWO}",
            f"2 actors of 64 HalfCheetahs / {_TWO}",
            f"{_SAC}: compiled / its matrix products alone",
        ]
    },
    "docs/project/performance.md": {
        "sampling": [
            f"2 actors of 256 CartPoles / {_TWO}",
            "2 actors of 256 CartPoles / SB3 PPO rollouts, 128 envs",
            f"2 actors of 2048 native CartPoles / {_TWO}",
            f"2 actors of 64 HalfCheetahs / {_TWO}",
            f"2 actors of 16 Pongs / {_TWO}",
            "64 actors in one helper, 10 ms asleep a step / 64 times one actor",
        ],
        "learning": [
            f"{_SAC}: from the replay / Stable-Baselines3",
            f"{_DQN}: from the replay / Stable-Baselines3",
            f"{_SAC}: from the replay / one fixed batch",
            f"{_DQN}: from the replay / one fixed batch",
            f"{_SAC}: loaded / alone on a core",
            "DQN 256x256, batches of 64: loaded / alone on a core",
            f"{_SYNC}: to 475",
            _SYNC,
        ],
        "replay": [
            "sample 256 of 1,000,000 transitions / torch.index_select of as many bytes",
            "90 % of samples of 256 transitions beside a pushing thread / at rest",
            f"{_PER} / tianshou",
            f"{_PER} / cpprb",
            f"{_PER} / torchrl",
            "1 MB of parameters: published until both actors act on it / an actor's turn",
        ],
    },
}
"""Page -> mark -> the comparisons that it shows, by name."""


def marks_of(name: str) -> tuple[str, str]:
    """Return the marks of one of a page's tables of `PICKS`."""
    return f"<!-- {name}: written by benchmarks.make_table -->", f"<!-- end of {name} -->"


def picked(page: str, name: str, results: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of a page: some comparisons, each with its processor, commit and spread.

    The first page shows one processor: the one that most of them were measured on.
    """
    wanted = PICKS[page][name]
    found = [r for r in results if any(c["what"] in wanted for c in r["comparisons"])]
    if page == "README.md":
        usual = statistics.mode(result["machine"]["processor"] for result in found)
        found = [result for result in found if result["machine"]["processor"] == usual]
    return _render_picked(found, wanted)


def _render_picked(results: Sequence[Mapping[str, Any]], wanted: Sequence[str]) -> str:
    rows = [
        _picked_row(result, comparison)
        for what in wanted
        for result in results
        for comparison in result["comparisons"]
        if comparison["what"] == what
    ]
    return "\n".join(["", *_PICKED_HEAD, *rows, ""])


def _picked_row(result: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    unit = comparison["unit"]
    cells = (
        comparison["what"],
        f"{_number(comparison['ours'])} {unit}",
        f"{_number(comparison['other'])} {unit}",
        f"{_number(comparison['ratio'], 2)} ({_spread(comparison)})",
        f"{_short(result['machine']['processor'])}, {result['commit']}",
    )
    return f"| {' | '.join(cells)} |"


def render(results: Iterable[Mapping[str, Any]]) -> str:
    """Return a table of all comparisons for each machine."""
    machines: dict[str, list[str]] = {}
    for result in results:
        rows = machines.setdefault(_machine(result["machine"]), [])
        rows += [_row(result, comparison) for comparison in result["comparisons"]]
    lines = [""]
    for machine, rows in machines.items():
        lines += [f"**{machine}**", "", *_HEAD, *rows, ""]
    return "\n".join(lines)


def _row(result: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    cells = (
        comparison["what"],
        f"**{_number(comparison['ratio'], 2)}**",
        _spread(comparison),
        _number(comparison["ours"]),
        _number(comparison["other"]),
        comparison["unit"],
        f"{result['date']}, {result['commit']}, load {result['load_before']:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def _short(processor: str) -> str:
    return processor.replace("(R)", "").replace(" Processor", "")


def _spread(comparison: Mapping[str, Any]) -> str:
    ratios = sorted(ratio for ratio in comparison["ratios"] if ratio is not None)
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}" if ratios else "none"
    if missing := len(comparison["ratios"]) - len(ratios):
        spread += f", {missing} without"
    return f"{spread}, n = {len(comparison['ratios'])}"


def _number(value: float | None, decimals: int | None = None) -> str:
    if value is None:
        return "not reached"
    if decimals is None:
        decimals = 0 if value >= 1000 else 1 if value >= 1 else 4
    return f"{value:,.{decimals}f}"


def _machine(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {machine[name]}" for name in ("torch", "numpy", "gymnasium"))
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['platform']}, "
        f"Python {machine['python']}, {versions}"
    )


def load(directory: Path) -> list[dict[str, Any]]:
    """Return the results of a directory that were taken at a commit, in the order of names.

    A replaced result counts if it is the newest of its processor: ratios depend on that.
    """
    current = _read(directory)
    names = {result["name"] for result in current}
    older = [result for result in _read(directory / "replaced") if result["name"] in names]
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for result in [*sorted(older, key=lambda result: str(result["date"])), *current]:
        newest[result["name"], result["machine"]["processor"]] = result
    return [newest[key] for key in sorted(newest)]


def _read(directory: Path) -> list[dict[str, Any]]:
    paths = sorted(directory.glob("*.json"))
    read = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return [result for result in read if "comparisons" in result and is_clean(result)]


def main() -> None:
    """Read all results and rewrite the pages."""
    parser = make_parser(__doc__)
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    results = load(args.results)
    publish(args.page, render(results), MARKS)
    for page, tables in PICKS.items():
        for name in tables:
            publish(ROOT / page, picked(page, name, results), marks_of(name))
    print(f"{len(results)} results are in {args.page}, and some in {', '.join(PICKS)}")


if __name__ == "__main__":
    main()
