"""The live frame, as text, in windows of several sizes."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

import pytest
from rich.console import Console

from asyncrl.recorders.dashboard import Dashboard
from asyncrl.recorders.run_state import RunState

RUN = {
    "env_steps": 12_000.0,
    "opt_steps": 3000.0,
    "wall_s": 12.0,
    "train_s": 11.0,
    "fps": 3921.3,
    "opt_steps_per_sec": 981.0,
    "samples_per_insert": 7.98,
    "episode/return_mean": 132.43,
    "eval_reward": 201.0,
    "eval/best": 205.5,
    "agent/loss": 0.012345,
    "lag/versions_mean": 23.4,
    "lag/seconds_max": 0.05,
    "ledger/produced": 12_128.0,
    "ledger/stored": 12_000.0,
    "ledger/dropped": 0.0,
    "ledger/lost": 12.0,
    "ledger/in_flight": 116.0,
    "share/learner_wait": 0.48,
    "share/learner_opt": 0.52,
    "share/actor_env": 0.7,
    "share/actor_policy": 0.3,
}


def actors(n: int, **more: float) -> dict[str, float]:
    record = {}
    for slot in range(n):
        record |= {
            f"actor/{slot}/env_steps": 1000.0 + slot,
            f"actor/{slot}/env_steps_per_s": 500.0 + slot,
            f"actor/{slot}/episodes": 40.0,
            f"actor/{slot}/restarts": 0.0,
            f"actor/{slot}/exploration_rate": 0.25,
        }
    return record | {name.replace("__", "/"): value for name, value in more.items()}


def make_state(*records: Mapping[str, float], **limits: float) -> RunState:
    state = RunState(limits or {"env_steps": 50_000}, ("eval_reward", 475.0))
    for record in records:
        state.update(record)
    return state


def draw(state: RunState, width: int = 80, height: int = 40) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=width, height=height)
    console.print(Dashboard(state))
    return out.getvalue().splitlines()


def line_with(frame: list[str], text: str) -> str:
    (found,) = [line for line in frame if text in line]
    return found


NUMBERS = [
    r"24 %",
    r"12\.0 k of 50\.0 k env steps",
    r"eval_reward 201\.0, goal 475\.0",
    r"env steps/s +3\.9 k",
    r"opt steps/s +981",
    r"samples per insert +7\.98",
    r"training mean +132\.4",
    r"best evaluation +205\.5",
    r"loss +0\.0123",
    r"opt steps, mean +23\.40",
    r"seconds, max +0\.0500",
    r"opt +━+╸? +52 %",
    r"policy +━+╸? +30 %",
    r"produced 12\.1 k = stored 12\.0 k \+ dropped 0",
    r"\+ lost 12 \+ in flight 116",
    r"1 +1\.0 k +501 +40 +0 +0\.2500",
]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_numbers_are_shown_at_any_width(width: int) -> None:
    text = "\n".join(draw(make_state(RUN | actors(3)), width))
    assert [number for number in NUMBERS if not re.search(number, text)] == []
    assert "faults" not in text


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_window(width: int) -> None:
    assert max(map(len, draw(make_state(RUN | actors(4) | FAULTS), width, 60))) <= width


@pytest.mark.parametrize("height", [12, 24, 50])
@pytest.mark.parametrize("n_actors", [0, 4])
def test_frame_fits_into_the_window(height: int, n_actors: int) -> None:
    frame = draw(make_state(RUN | actors(n_actors)), 80, height)
    assert len(frame) < height or height < 18


def test_many_actors_are_cut_to_those_with_faults() -> None:
    state = make_state(RUN | actors(64, actor__40__restarts=2.0, actor__50__env_steps_per_s=1.0))
    frame = draw(state, 80, 26)
    shown = [line.split() for line in frame[frame.index(line_with(frame, "actor  env")) + 1 : -1]]
    slots = [row[0] for row in shown]
    assert {"40", "50"} <= set(slots)
    assert frame[-1].strip() == f"... and {64 - len(slots)} more"


FAULTS = {
    "actor/3/dropped": 1.0,
    "actor/1/restarts": 12.0,
    "actor/2/restarts": 1.0,
    "actor/2/memory_restarts": 9.0,
    "actor/0/env_restarts": 5.0,
    "actor/0/model_version": 2990.0,
    "actor/3/model_version": 1000.0,
    "checkpoint/failures": 1.0,
    "link/malformed": 1.0,
    "link/after_gap": 40.0,
    "link/handshake_failed": 12_000.0,
}
