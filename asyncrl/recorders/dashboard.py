"""Draws the live view: a run's state as a rich renderable. Holds no state, opens no terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncrl.recorders.run_state import (
    RunState,
    byte_size,
    count,
    duration,
    fault_phrases,
    measure,
    percent,
)

_Labels = Mapping[str, tuple[str, Callable[[float], str]]]

_TITLE = "bold cyan"
_SECTION_WIDTH = 24
_WIDEST_SECTION = 32
_GAP = 3
_BAR_WIDTH = 9
_FEWEST_SECTIONS = 2
_FEWEST_ACTORS = 2
_MOST_LOSSES = 5
_IDLE_S = 5.0
_THROUGHPUT: _Labels = {
    "fps": ("env steps/s", count),
    "opt_steps_per_sec": ("opt steps/s", count),
    "samples_per_insert": ("samples per insert", measure),
    "replay/size": ("replay size", count),
    "learner/threads": ("learner threads", count),
    "record/dropped": ("records dropped", count),
}
_RETURNS: _Labels = {
    "eval_reward": ("evaluation", measure),
    "eval/best": ("best evaluation", measure),
    "episode/return_mean": ("training mean", measure),
    "episode/return_max": ("training max", measure),
    "episodes": ("episodes", count),
    "episode/success_rate": ("success rate", measure),
    "eval/success_rate": ("evaluated success", measure),
}
_LOADS = (
    ("learner cpu", "system/cpu_percent", "system/rss_bytes"),
    ("actors cpu", "system/children_cpu_percent", "system/children_rss_bytes"),
    ("gpu", "system/gpu_percent", "system/gpu_memory_bytes"),
)
_ACTOR_COLUMNS = ("env_steps", "env_steps_per_s", "episodes", "restarts", "model_version")
_STATES = ("dropped", "left", "env_restarts", "memory_restarts")
"""Actor metrics without a column; the faults and the marks show them."""

_MOST_POLICY_COLUMNS = 2
_ACTOR_WIDTH, _BEHIND_WIDTH, _POLICY_WIDTH = 49, 8, 9
"""Widths in characters: the columns that every actor has, the column of the policy lag, one column
of the policy's own metrics. The last two are left out where their numbers would be cut."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One frame; fits itself to the width and height of the console."""

    state: RunState

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, console.size.height - 1
        actors = self.state.actors()
        wanted = min(len(actors), _FEWEST_ACTORS) + 2 if actors else 0
        sections = _sections(self.state)
        top = self._top(sections, width)
        used = len(console.render_lines(top, options))
        # The last sections matter least, so they are dropped first when the window is low.
        while used + wanted > height and len(sections) > _FEWEST_SECTIONS:
            del sections[-1]
            top = self._top(sections, width)
            used = len(console.render_lines(top, options))
        yield top
        if actors and (room := height - used - 2) >= 1:
            yield Text()
            yield from _actor_table(self.state, actors, room, width)

    def _top(self, sections: Sequence[RenderableType], width: int) -> Group:
        return Group(_header(self.state, width), *_blocks(self.state, sections, width))


def ledger_line(ledger: Mapping[str, float]) -> str:
    """Return the ledger in one line: what actors produced, and where it is now."""
    return " ".join(_ledger_parts(ledger))


def _ledger_parts(ledger: Mapping[str, float]) -> list[str]:
    kinds = ("stored", "dropped", "lost", "in_flight")
    parts = [f"{name.replace('_', ' ')} {count(ledger[name])}" for name in kinds if name in ledger]
    first = f"produced {count(ledger['produced'])} = {parts[0]}"
    return [first, *(f"+ {part}" for part in parts[1:])]


def _packed(parts: Sequence[str], separator: str, width: int) -> str:
    """Join parts with line breaks between them only, not inside."""
    lines = [parts[0]] if parts else []
    for part in parts[1:]:
        if len(lines[-1] + separator + part) <= width:
            lines[-1] += separator + part
        else:
            lines.append(part)
    return "\n".join(lines)


def _header(state: RunState, width: int) -> RenderableType:
    limit_s = state.limits.get("train_s")
    trained = f"{duration(state.values.get('train_s', 0.0))} of {duration(limit_s or 0.0)}"
    time = trained if limit_s else duration(state.wall_s)
    if state.ended:
        time += f", {state.ended}"
    elif state.eta_s is not None:
        time += f", {duration(state.eta_s)} left"
    style = {"": "bold", "failed": "bold red"}.get(state.ended, "bold green")
    line = Table.grid(padding=(0, 2, 0, 0), pad_edge=False, expand=True)
    if (fraction := state.fraction) is not None:
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        line.add_column(no_wrap=True)
        line.add_row(_bar(fraction), percent(fraction), Text(time, style=style))
    else:
        line.add_row(Text(time, style=style))
    parts: list[RenderableType] = [line, Text(_packed(_progress(state), " | ", width), style="dim")]
    if not state.ended and (verdict := state.verdict):  # the summary shows all of them
        calm = verdict.kind in {"alone", "balanced", "too-early", "unlimited"}
        parts.append(Text(verdict.sentence, style="dim" if calm else "yellow"))
    return Group(*parts)


def _progress(state: RunState) -> list[str]:
    parts = []
    for name in dict.fromkeys(("env_steps", "opt_steps", *state.limits)):
        if name in state.values and name != "train_s":
            of = f" of {count(state.limits[name])}" if name in state.limits else ""
            parts.append(f"{count(state.values[name])}{of} {name.replace('_', ' ')}")
    if state.target:
        name, bar = state.target
        now = f"{measure(state.values[name])}, " if name in state.values else ""
        parts.append(f"{name} {now}goal {measure(bar)}")
    return parts


def _sections(state: RunState) -> list[RenderableType]:
    """Return the sections that have any known number, the most important first."""
    titles = ("throughput", "learner's time", "actors' time")
    returns = "returns"
    if "rank/0/stored" in state.values:  # the rest is of all learners
        titles = ("throughput", "rank 0's time", "its actors' time")
        returns = "returns, of rank 0"
    if state.ended:
        titles = ("throughput, whole run", "learner, whole run", "actors, whole run")
    throughput, learner, actors = titles
    sections = [
        _rows(throughput, _throughput(state.values)),
        _rows(returns, _labelled(state.values, _RETURNS)),
        _bars(learner, list(state.shares("share/learner_"))),
        _bars(actors, list(state.shares("share/actor_"))),
        _rows("losses", _losses(state.values)),
        _rows("sampled data's age", _lag(state.values)),
    ]
    return [section for section in sections if section is not None]


def _blocks(
    state: RunState, sections: Sequence[RenderableType], width: int
) -> list[RenderableType]:
    """Lay sections out in as many columns as fit, and the ledger below them."""
    across = max(1, (width + _GAP) // (_SECTION_WIDTH + _GAP))
    blocks: list[RenderableType] = []
    for first in range(0, len(sections), across):
        row = sections[first : first + across]
        grid = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
        for _ in row:
            grid.add_column(width=min((width + _GAP) // across - _GAP, _WIDEST_SECTION))
        grid.add_row(*row)
        blocks += [Text(), grid]
    ledger = _below(state.values, "ledger/")
    entries = _ledger_parts(ledger) if {"produced", "stored"} <= set(ledger) else []
    faults = fault_phrases(state.values, state.actors())
    listed = [f"{phrase}," for phrase in faults[:-1]] + faults[-1:]
    lines = Table.grid()
    for title, text, style in (
        ("hosts   ", _hosts(state.values), ""),
        ("ranks   ", _packed(_ranks(state.values), "; ", width - len("ranks   ")), ""),
        ("ledger  ", _packed(entries, " ", width - len("ledger  ")), ""),
        ("faults  ", _packed(listed, " ", width - len("faults  ")), "yellow"),
    ):
        if text:
            lines.add_row(Text(title, style=_TITLE), Text(text, style=style))
    return [*blocks, Text(), lines] if lines.rows else blocks


def _hosts(values: Mapping[str, float]) -> str:
    """Return how many hosts there are, and what runs on them; empty in a run without hosts."""
    if "hosts/joined" not in values:
        return ""
    joined, running, room = (count(values[f"hosts/{n}"]) for n in ("joined", "actors", "room"))
    trip_ms = values["hosts/round_trip_ms"]
    trip = f"; round trip up to {trip_ms:.1f} ms" if trip_ms else ""
    traffic = f"; {values['hosts/traffic_mb']:.3g} MB in all"
    return f"{joined} joined, with room for {room} actors, {running} of which run{trip}{traffic}"


def _ranks(values: Mapping[str, float]) -> list[str]:
    """Return what each of several learners has."""
    parts: list[str] = []
    while (prefix := f"rank/{len(parts)}/") + "stored" in values:
        stored, size, without = (
            count(values[prefix + name])
            for name in ("stored", "replay_size", "steps_without_batch")
        )
        parts.append(
            f"{len(parts)}: stored {stored}, replay {size}, steps without a batch {without}"
        )
    return parts


def _labelled(values: Mapping[str, float], labels: _Labels) -> list[tuple[str, str]]:
    return [(label, form(values[name])) for name, (label, form) in labels.items() if name in values]


def _throughput(values: Mapping[str, float]) -> list[tuple[str, str]]:
    rows = _labelled(values, _THROUGHPUT)
    for label, load, memory in _LOADS:
        parts = [
            f"{values[load]:.0f} %" if load in values else "",
            byte_size(values[memory]) if memory in values else "",
        ]
        if any(parts):
            rows.append((label, ", ".join(filter(None, parts))))
    return rows


def _losses(values: Mapping[str, float]) -> list[tuple[str, str]]:
    means = _below(values, "agent/")
    losses = [
        (n, measure(v)) for n, v in means.items() if n != "count" and not _is_extreme(n, means)
    ]
    if len(losses) > _MOST_LOSSES:
        hidden = len(losses) - _MOST_LOSSES + 1
        losses = [*losses[: _MOST_LOSSES - 1], (f"... {hidden} more", "")]
    return losses


def _is_extreme(name: str, means: Mapping[str, float]) -> bool:
    """Whether this is the lowest or highest value of another number."""
    base, _, kind = name.rpartition("_")
    return kind in {"min", "max"} and base in means


def _lag(values: Mapping[str, float]) -> list[tuple[str, str]]:
    return [
        (f"{unit}, {kind}", measure(values[f"lag/{name}_{kind}"]))
        for name, unit in (("versions", "opt steps"), ("seconds", "seconds"))
        for kind in ("mean", "max")
        if f"lag/{name}_{kind}" in values
    ]


def _below(values: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): v for name, v in values.items() if name.startswith(prefix)}


def _rows(title: str, rows: Sequence[tuple[str, str]]) -> RenderableType | None:
    if not rows:
        return None
    return Group(Text(title, style=_TITLE), *(_row(label, value) for label, value in rows))


def _bar(share: float) -> ProgressBar:
    return ProgressBar(total=1.0, completed=share, complete_style="cyan", finished_style="green")


def _row(label: str, value: str) -> RenderableType:
    # A separate grid: a long value must not shorten the labels of the other rows.
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    bad = value in {"nan", "inf", "-inf"}
    grid.add_row(Text(label), Text(value, style="bold red" if bad else "bold"))
    return grid


def _bars(title: str, shares: Sequence[tuple[str, float]]) -> RenderableType | None:
    if not shares:
        return None
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    grid.add_column(width=_BAR_WIDTH)
    grid.add_column(no_wrap=True, justify="right", width=5)
    for name, share in shares:
        grid.add_row(Text(name), _bar(share), Text(percent(share), style="bold"))
    return Group(Text(title, style=_TITLE), grid)


def _actor_table(
    state: RunState, actors: Mapping[str, Mapping[str, float]], room: int, width: int
) -> list[RenderableType]:
    """Draw one line per actor. If there is no room for all, show those with problems."""
    slots = list(actors)
    if len(slots) > room:
        ill = sorted(slots, key=lambda s: _severity(state, s, actors[s]), reverse=True)
        slots = [slot for slot in slots if slot in set(ill[: room - 1])]
    shown = {*_ACTOR_COLUMNS, *_STATES}
    policy = [name for row in actors.values() for name in row if name not in shown]
    behind = ["behind"] if any("model_version" in row for row in actors.values()) else []
    room_for = (width - _ACTOR_WIDTH - _BEHIND_WIDTH * len(behind)) // _POLICY_WIDTH
    extra = list(dict.fromkeys(policy))[: min(max(room_for, 0), _MOST_POLICY_COLUMNS)]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=_TITLE, pad_edge=False)
    for title in ("actor", "env steps", "steps/s", "episodes", "restarts", *behind):
        table.add_column(title, justify="right", no_wrap=True)
    for title in extra:  # titles may be cut where the window is narrow, numbers are not
        table.add_column(Text(title), justify="right", overflow="ellipsis", min_width=7)
    for slot in slots:
        late = [Text(_actor_lag(state, actors[slot]))] if behind else []
        policy_cells = [_policy_cell(actors[slot], name) for name in extra]
        table.add_row(*_actor_cells(state, slot, actors[slot]), *late, *policy_cells)
    hidden = len(actors) - len(slots)
    more = [Text(f"... and {hidden} more", style="dim")] if hidden else []
    return [table, *more]


def _severity(state: RunState, slot: str, row: Mapping[str, float]) -> tuple[float, ...]:
    idle = state.idle_s(slot) >= _IDLE_S and not row.get("left")
    restarts = row.get("restarts", 0.0) + row.get("env_restarts", 0.0)
    return row.get("dropped", 0.0), idle, restarts, -row.get("env_steps_per_s", 0.0)


def _actor_cells(state: RunState, slot: str, row: Mapping[str, float]) -> list[RenderableType]:
    def cell(name: str, style: str = "") -> Text:
        return Text(count(row[name]) if name in row else "", style=style)

    pace = cell("env_steps_per_s")
    if row.get("dropped"):
        pace = Text("dropped", style="bold red")
    elif row.get("left"):
        pace = Text("left", style="dim")
    elif (idle_s := state.idle_s(slot)) >= _IDLE_S and not state.ended:
        pace = Text(f"idle {duration(idle_s)}", style="bold red")
    restarts = cell("restarts", "bold yellow" if row.get("restarts") else "")
    for name, kind in (("memory_restarts", "memory"), ("env_restarts", "env")):
        if row.get(name):
            restarts = Text(f"{restarts.plain}+{count(row[name])} {kind}", style="bold yellow")
    return [
        Text(slot),
        cell("env_steps"),
        pace,
        cell("episodes"),
        restarts,
    ]


def _actor_lag(state: RunState, row: Mapping[str, float]) -> str:
    """Return by how many opt steps the learner is ahead of an actor's newest experience."""
    if "model_version" not in row or row.get("dropped") or row.get("left"):
        return ""
    return count(max(0.0, state.values.get("opt_steps", 0.0) - row["model_version"]))


def _policy_cell(row: Mapping[str, float], name: str) -> Text:
    return Text(measure(row[name]) if name in row else "")
