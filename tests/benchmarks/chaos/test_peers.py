from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.chaos.peers import cell as cells_module
from benchmarks.chaos.peers.__main__ import chosen
from benchmarks.chaos.peers.cell import SIDES, Cell, Side, cells, run_cell
from benchmarks.chaos.peers.faulty import make_env
from benchmarks.chaos.peers.findings import Kept, load, save
from benchmarks.chaos.peers.scene import CAUSE, FAULTS, Scene, telling
from benchmarks.chaos.peers.table import BEGIN, END, render
from benchmarks.chaos.peers.verdict import Finding
from benchmarks.common import ROOT

KEPT = Kept(
    finding=Finding(
        outcome="recovered",
        after_s=1.25,
        pause_s=0.5,
        lost=1234,
        bad_rows=0,
        bad_params=False,
        working=2,
        exit_code=0,
        told="a | b",
        details={"healthy": 2},
    ),
    version="1.2",
    date="2030-01-02",
    commit="abc1234",
    load_before=0.5,
    patience_s=100.0,
    machine={"processor": "a processor", "platform": "Linux"},
)


def kept(**values: Any) -> Kept:
    plain = {name: getattr(KEPT.finding, name) for name in Finding.__slots__} | values
    others = {name: getattr(KEPT, name) for name in Kept.__slots__ if name != "finding"}
    return Kept(finding=Finding(**plain), **others)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    made.open()
    return made


def test_a_well_environment_leaves_word_of_its_steps(scene: Scene):
    env = make_env(str(scene.directory), "raise")
    env.reset(seed=0)
    for _ in range(3):
        env.step(0)
    env.close()
    assert scene.beats()[os.getpid()].steps == 3
    assert scene.claimed() is None


def test_the_next_environment_of_a_process_counts_on(scene: Scene):
    for _ in range(2):
        env = make_env(str(scene.directory), "raise")
        env.reset(seed=0)
        env.step(0)
        env.close()
    assert scene.beats()[os.getpid()].steps == 2


def test_one_environment_of_several_raises_once(scene: Scene):
    envs = [make_env(str(scene.directory), "raise") for _ in range(2)]
    for env in envs:
        env.reset(seed=0)
    scene.flag.touch()
    with pytest.raises(RuntimeError, match=CAUSE):
        envs[0].step(0)
    for env in envs:
        env.step(0)
        env.close()
    claim = scene.claimed()
    assert claim is not None
    assert claim.pid == os.getpid()


def test_one_step_has_no_numbers(scene: Scene):
    env = make_env(str(scene.directory), "nan")
    env.reset(seed=0)
    scene.flag.touch()
    obs, reward, *_ = env.step(0)
    assert np.isnan(obs).all()
    assert np.isnan(reward)
    assert scene.beats() == {}  # so far, nobody can tell that it goes on
    obs, reward, *_ = env.step(0)
    assert np.isfinite([*obs, reward]).all()
    assert scene.beats()[os.getpid()].steps == 1
    env.close()


def test_without_a_fault_the_environment_is_the_plain_one(scene: Scene):
    env = make_env(str(scene.directory))
    env.reset(seed=0)
    env.step(0)
    assert scene.beats() == {}


def test_the_environment_does_not_load_asyncrl():
    script = (
        "import sys, benchmarks.chaos.peers.faulty\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'asyncrl']"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)


def test_notes_are_read_line_by_line_and_half_a_line_is_not_there_yet(scene: Scene):
    assert scene.notes() == []
    scene.progress(received=5)
    with scene.notes_file.open("ab") as file:
        file.write(b'{"event": "pro')
    (note,) = scene.notes()
    assert (note["event"], note["received"], note["made"]) == ("progress", 5, 0)


def test_how_a_training_loop_ends_is_noted(scene: Scene):
    with telling(scene):
        pass
    with pytest.raises(KeyError), telling(scene):
        raise KeyError("wheel")
    end, error = scene.notes()
    assert end["event"] == "end"
    assert (error["event"], error["type"], error["message"]) == ("error", "KeyError", "'wheel'")


def test_every_side_meets_every_fault():
    names = {cell.name for cell in cells()}
    assert len(names) == len(cells())
    assert {f"{side}/{fault}" for side in SIDES for fault in FAULTS} <= names
    assert {name for name in names if name.endswith("careful")} == {
        f"{side}/{fault}/careful" for side in SIDES for fault in SIDES[side].careful
    }


def test_cells_are_chosen_by_name_or_by_what_they_are_below():
    assert chosen([]) == cells()
    assert [cell.name for cell in chosen(["sb3/nan"])] == ["sb3/nan", "sb3/nan/careful"]
    assert {cell.side for cell in chosen(["sb3"])} == {"sb3"}
    with pytest.raises(SystemExit, match="no cell is called"):
        chosen(["sb3/none"])


def test_findings_are_kept(tmp_path: Path):
    path = tmp_path / "chaos" / "peers.json"
    assert load(path) == {}
    save(path, {"sb3/kill": KEPT})
    assert load(path) == {"sb3/kill": KEPT}


def test_the_table_says_what_happened():
    found = {
        "asyncrl/kill": KEPT,
        "sb3/hang": kept(outcome="hung", exit_code=None, told="", after_s=100.0),
        "torchrl/nan": kept(outcome="learned", bad_rows=3, bad_params=True, told=""),
        "rllib-ppo/nan": kept(outcome="learned", bad_rows=1, told="a warning"),
        "rllib-impala/hang": kept(outcome="short", after_s=200.0),
        "rllib-ppo/hang": kept(outcome="short", after_s=200.0, pause_s=130.0),
        "sb3/nan/careful": kept(outcome="ended", exit_code=1),
        "rllib-impala/kill": kept(lost=1),
    }
    page = render(cells(), found)
    assert "**recovered** | 1.2 s | 0.5 s | 1,234 steps lost | 0 | `a / b` |" in page
    assert (
        "hung | 100.0 s | 0.5 s | 1,234 steps never learned from | killed by us | nothing |" in page
    )
    assert "| 1 step lost |" in page
    assert "went on in silence, and learned from it" in page
    assert "3 bad rows learned from, **the model is NaN**" in page
    assert "went on, and learned from it | 1.2 s | 0.5 s | 1 bad rows" in page
    assert "| went on, with 1 of 2 | 200.0 s |" in page
    assert "| went on by fits and starts, with 1 of 2 | 200.0 s | 130.0 s |" in page
    assert "the environment raises" not in page  # nothing was found out about it
    assert "the cause is on the screen" not in page
    assert f"| {SIDES['sb3'].label} (careful) | run over | 1.2 s |  | 1,234 steps never" in page
    assert f"| {SIDES['asyncrl'].label} | not measured |  |  |  |  |  |" in page
    assert f"Stable-Baselines3, careful: {SIDES['sb3'].means}." in page
    assert "Measured: 2030-01-02, one run each, with asyncrl 1.2" in page


def test_the_table_says_where_the_cause_of_an_error_is():
    found = {
        "sb3/raise": kept(outcome="ended", told="EOFError", cause="screen"),
        "asyncrl/raise": kept(outcome="ended", told=CAUSE, cause="error"),
    }
    page = render(cells(), found)
    assert "| `EOFError`; the cause is on the screen |" in page
    assert f"| `{CAUSE}` |" in page


def test_the_page_has_a_place_for_the_table():
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert page.index(BEGIN) < page.index(END)


STAND_IN = """
import subprocess, sys, threading
from benchmarks.chaos.peers.scene import asked, telling
from benchmarks.chaos.peers.faulty import make_env

WORKER = '''
import sys
from benchmarks.chaos.peers.faulty import make_env
env = make_env(*sys.argv[1:])
env.reset(seed=0)
while True:
    if any(env.step(0)[2:4]):
        env.reset()
'''
run = asked("")
run.scene.note("version", version="0")
command = [sys.executable, "-c", WORKER, str(run.scene.directory), run.fault]
workers = [subprocess.Popen(command) for _ in range(2)]
received = 0
with telling(run.scene):
    while not run.scene.stop.exists():
        received += 1
        run.scene.progress(received=received, bad_rows=0, bad_params=False)
        for worker in workers:
            if worker.poll() is not None:
                raise EOFError("a worker is gone")
        threading.Event().wait(0.05)
"""


@pytest.mark.processes
def test_a_run_that_ends_at_the_fault_is_seen_to_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN, encoding="utf-8")
    monkeypatch.setitem(SIDES, "stand-in", Side(label="stand-in", module="stand_in"))
    directories: list[Path] = []

    def command(_: Cell, directory: Path) -> list[str]:
        directories.append(directory)
        return [sys.executable, str(script), str(directory), "kill"]

    monkeypatch.setattr(Cell, "command", command)
    finding, version = run_cell(Cell(side="stand-in", fault="kill"))
    assert (finding.outcome, finding.told, version) == ("ended", "EOFError: a worker is gone", "0")
    assert finding.exit_code == 1
    assert list(cells_module._marked(directories[0])) == []
    assert not directories[0].exists()
