"""Writes what stored benchmark results say: learning of each algorithm, and all tables.

Rows and curves come from `benchmarks/results/learning`, tables from `benchmarks/README.md`. The
pages of algorithms contain what `learning` returns.
"""

from __future__ import annotations

import html
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.common import FIRST_SEED, is_clean
from benchmarks.learning.runs import Run
from benchmarks.learning.table import ENOUGH_SEEDS
from benchmarks.learning.tasks import CASES, TASKS, Task

ROOT = Path(__file__).parent.parent

ALGORITHMS: Mapping[str, Sequence[str]] = {
    "awac": ("awac",),
    "bc": ("bc",),
    "c51": ("c51",),
    "crossq": ("crossq",),
    "discrete-sac": ("discrete-sac",),
    "dqn": ("dqn",),
    "impala": ("impala", "impala-gru"),
    "iql": ("iql",),
    "iqn": ("iqn",),
    "ppo": ("ppo", "appo", "ppo-gru"),
    "r2d2": ("r2d2",),
    "rainbow": ("rainbow",),
    "sac": ("sac",),
    "td3": ("td3",),
}
"""Pages in `docs/algorithms` -> the algorithms of stored runs that they show."""

_MODES = {"async": "two actors", "sync": "one process", "offline": "from data"}
_HEAD = "\n".join(
    ("| task, target | mode | score | at the target | env steps | seconds |", "|---" * 6 + "|")
)

_WIDTH, _HEIGHT = 320, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 24, 30
"""Margins around the axes, for titles and numbers."""

_STYLE = (
    "text{font:10px sans-serif;fill:#666}.title{font-size:12px;font-weight:600}"
    ".x{text-anchor:middle}.y{text-anchor:end}path,polyline{fill:none;stroke:#4051b5}"
    ".axis,.bar{stroke:#888}.bar{stroke-dasharray:4 3}.seed{opacity:.45}"
    ".one{opacity:.8;stroke-dasharray:2 3}.mean{stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#aaa}path,polyline{stroke:#8c9eff}}"
)


# --- learning ------------------------------------------------------------------------------------


def learning(page: str, runs: Iterable[Run]) -> str:
    """Return the measured results of a page: a table and a learning curve for each task."""
    own = [run for run in runs if run.algorithm in ALGORITHMS[page] and is_clean(run.origin)]
    groups = _shown(own)
    if not groups:
        return "No run of a committed version is stored yet.\n"
    rows = [_row(group) for group in groups]
    drawn = _drawn(groups)
    curves = [f"![Learning curves of {g[0].name}](../assets/curves/{_file(g)})" for g in drawn]
    parts = ["\n".join([_HEAD, *rows]), *filter(None, ["\n".join(curves)])]
    parts.append(_legend(groups, drawn=bool(curves)))
    if others := _settings(groups):
        parts.append(others)
    return "\n\n".join(parts) + "\n"


def pictures(runs: Sequence[Run]) -> dict[str, str]:
    """Return the learning curves of all algorithms as SVG, by file name."""
    files: dict[str, str] = {}
    for names in ALGORITHMS.values():
        own = [run for run in runs if run.algorithm in names and is_clean(run.origin)]
        files |= {_file(group): _picture(group) for group in _drawn(_shown(own))}
    return files


def _drawn(groups: Iterable[list[Run]]) -> list[list[Run]]:
    return [group for group in _by(groups, "async", "sync") if group[0].curve]


def _file(group: Sequence[Run]) -> str:
    return re.sub(r"[^\w-]+", "-", group[0].name).lower() + ".svg"


def _shown(runs: Sequence[Run]) -> list[list[Run]]:
    """Group runs by algorithm, task and mode.

    Seeds that presets were tuned on count only where there are not enough others. The runs of a
    group are those of one processor, the one with most of them.
    """
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.algorithm, run.task, run.mode), []).append(run)
    chosen = {}
    for name, group in groups.items():
        measured = [run for run in group if run.seed >= FIRST_SEED]
        tuned = [run for run in group if run.seed < FIRST_SEED]
        enough = len(measured) >= ENOUGH_SEEDS or not tuned
        chosen[name] = _of_one_processor(measured if enough else tuned)
    order = [*TASKS]
    return [chosen[name] for name in sorted(chosen, key=lambda n: (order.index(n[1]), n[0], n[2]))]


def _of_one_processor(runs: Sequence[Run]) -> list[Run]:
    processor = statistics.mode(run.origin["machine"]["processor"] for run in runs)
    return [run for run in runs if run.origin["machine"]["processor"] == processor]


def _by(groups: Iterable[list[Run]], *modes: str) -> list[list[Run]]:
    """Join the groups of one algorithm and task, of these modes."""
    joined: dict[str, list[Run]] = {}
    for group in groups:
        if group[0].mode in modes:
            joined.setdefault(group[0].name, []).extend(group)
    return [*joined.values()]


def _row(runs: Sequence[Run]) -> str:
    first, task = runs[0], TASKS[runs[0].task]
    name = "" if first.algorithm in ALGORITHMS else f", `{first.algorithm}`"
    tuning = "" if first.seed >= FIRST_SEED else "\\*"
    scores = [run.score for run in runs]
    digits = 1 if abs(statistics.fmean(scores)) >= 1 else 3
    spread = f" ± {statistics.stdev(scores):.{digits}f}" if len(scores) > 1 else ""
    cells = [
        f"{task.title}, {task.bar:g}{name}",
        f"{_MODES[first.mode]}{tuning}",
        f"{statistics.fmean(scores):.{digits}f}{spread}",
        f"{sum(run.reached for run in runs)} of {len(runs)}",
        f"{statistics.median(run.env_steps for run in runs):,.0f}",
        f"{statistics.median(run.wall_s for run in runs):,.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _legend(groups: Sequence[Sequence[Run]], *, drawn: bool) -> str:
    runs = [run for group in groups for run in group]
    machines = sorted({str(run.origin["machine"]["processor"]) for run in runs})
    dates = sorted({str(run.origin["date"]) for run in runs})
    text = [
        "Score: greedy return of the best model in separate episodes, mean and standard deviation "
        "over seeds. Environment steps and seconds: medians until two consecutive evaluations "
        "reach the target, or until the budget is used up.",
        f"Measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))} on 2 cores of "
        f"{' or '.join(machines)}; times on different processors are not comparable.",
    ]
    if any(group[0].seed < FIRST_SEED for group in groups):
        text.append("\\* On the seeds that the preset was tuned on: an optimistic score.")
    if drawn:
        text.append(
            "Curves: greedy return in evaluations over environment steps. Thin lines are seeds, "
            "the bold line is their mean with two actors, dotted lines are one process, the dashed "
            "line is the target."
        )
    text.append(
        "[Measurements](../reference/measurements.md) has commits, machines and policy lag."
    )
    return " ".join(text)


def _settings(groups: Sequence[Sequence[Run]]) -> str:
    """Say what the runs set beside their presets."""
    names = {group[0].name for group in groups}
    lines = []
    for case in CASES:
        if case.name not in names:
            continue
        changed = [f"`{name}={value}`" for name, value in case.settings.items()]
        if changed:
            start = case.preset or case.algorithm
            lines.append(f"* {TASKS[case.task].title}: `{start}` with {', '.join(changed)}")
    if not lines:
        return ""
    return "Settings beside those of the preset:\n\n" + "\n".join(lines)


# --- learning curves -----------------------------------------------------------------------------


def _picture(runs: Sequence[Run]) -> str:
    """Return the curves of an algorithm on a task as SVG, for light and dark pages."""
    task = TASKS[runs[0].task]
    curves = [_curve(run, task) for run in runs]
    last = max(curve[-1][0] for curve in curves)
    values = [score for curve in curves for _, score in curve]
    low, high = min(*values, task.bar), max(*values, task.bar)
    high += 0.05 * (high - low)
    axes = _Axes(last, low, high)
    parts = [axes.drawn(task.bar)]
    for run, curve in zip(runs, curves, strict=True):
        parts.append(axes.line(curve, "one" if run.mode == "sync" else "seed"))
    several = [c for run, c in zip(runs, curves, strict=True) if run.mode == "async"]
    if several:
        parts.append(axes.line(_mean(several), "mean"))
    title = f"{runs[0].algorithm}, {task.title}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}"><style>{_STYLE}</style>'
        f'<text class="title" x="{_LEFT}" y="14">{html.escape(title)}</text>'
        f"{''.join(parts)}</svg>\n"
    )


class _Axes:
    """Places steps and scores in a picture."""

    def __init__(self, last: float, low: float, high: float) -> None:
        self._last, self._low, self._span = last, low, (high - low) or 1.0
        self._high = high

    def line(self, points: Iterable[tuple[float, float]], kind: str) -> str:
        where = " ".join(f"{self._x(x):.0f},{self._y(y):.1f}" for x, y in points)
        return f'<polyline class="{kind}" points="{where}"/>'

    def drawn(self, bar: float) -> str:
        """Return the axes with a few round numbers, and the bar."""
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        parts = [f'<path class="axis" d="M{_LEFT},{_TOP}V{bottom}H{right}"/>']
        for value in _round_numbers(self._low, self._high):
            y = self._y(value)
            parts.append(f'<text class="y" x="{_LEFT - 5}" y="{y + 4:.0f}">{value:g}</text>')
        for value in _round_numbers(0, self._last):
            x = self._x(value)
            parts.append(f'<text class="x" x="{x:.0f}" y="{bottom + 16}">{_short(value)}</text>')
        y = self._y(bar)
        parts.append(f'<path class="bar" d="M{_LEFT},{y:.1f}H{right}"/>')
        return "".join(parts)

    def _x(self, steps: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * steps / self._last

    def _y(self, score: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * (score - self._low) / self._span


def _curve(run: Run, task: Task) -> list[tuple[float, float]]:
    """Return steps and scores up to the bar, without evaluations that were under way by then."""
    points = [(float(steps), score) for steps, _, score in run.curve]
    above = [i for i, (_, score) in enumerate(points) if score >= task.bar]
    return points[: above[-1] + 1] if run.reached and above else points


def _mean(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Return the mean of curves; one that has ended counts with its last score."""
    first, last = max(c[0][0] for c in curves), max(c[-1][0] for c in curves)
    steps = [first + (last - first) * i / 60 for i in range(61)]
    return [(x, statistics.fmean(_at(curve, x) for curve in curves)) for x in steps]


def _at(curve: Sequence[tuple[float, float]], steps: float) -> float:
    """Interpolate a curve."""
    before = curve[0]
    for point in curve:
        if point[0] >= steps:
            width = point[0] - before[0]
            part = (steps - before[0]) / width if width else 1.0
            return before[1] + part * (point[1] - before[1])
        before = point
    return before[1]


def _round_numbers(low: float, high: float) -> list[float]:
    """Return three to six round numbers between two."""
    rough = (high - low) / 4 or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * k for k in (1, 2, 2.5, 5, 10) if unit * k >= rough)
    first = math.ceil(low / step)
    return [round(step * i, 6) for i in range(first, math.floor(high / step) + 1)]


def _short(number: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"


# --- tables --------------------------------------------------------------------------------------

_SECTIONS = {
    "results": "Speed",
    "learning": "Learning",
    "commands": "Seconds to a score, as typed",
    "peers": "Other frameworks",
    "chaos": "Faults",
    "faults elsewhere": "The same faults in other frameworks",
}
"""Names of generated tables in `benchmarks/README.md` -> headings here."""


def measurements_page() -> str:
    """Return all tables of `benchmarks/README.md`."""
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    parts = [
        "---\nhide: [navigation, toc]\n---\n\n# Measurements",
        "Every stored result, as in `benchmarks/README.md` of the repository, which explains how "
        "each was measured and how to repeat it. [Performance](../project/performance.md) and "
        "[Reliability](../project/reliability.md) sum them up.",
    ]
    for name, heading in _SECTIONS.items():
        found = re.search(rf"<!-- {name}: .*? -->\n(.*?)<!-- end of {name} -->", text, re.DOTALL)
        if found is None:
            raise RuntimeError(f"benchmarks/README.md has no generated part {name!r}")
        parts += [f"## {heading}", found[1].strip()]
    return "\n\n".join(parts) + "\n"
