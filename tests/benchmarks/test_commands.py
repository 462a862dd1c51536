"""The table of commands as typed: what is run next, what a peer is asked for, what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asyncrl.metrics.machine import machine
from asyncrl.run.presets import preset
from benchmarks.learning import commands
from benchmarks.learning.alike import equal, variants, zoo
from benchmarks.learning.commands_table import render, render_short
from benchmarks.learning.rows import ROWS
from benchmarks.learning.runs import Run, keep

ORIGIN = {"date": "2030-01-02", "commit": "abc1234", "load_before": 0.5, "machine": machine()}


def a_run(side: str, seed: int, wall_s: float, *, reached: bool = True) -> Run:
    return Run(
        algorithm="ppo",
        task="cartpole",
        mode=side,
        seed=seed,
        settings=equal(preset("ppo")),
        score=480.0,
        score_std=0.0,
        reached=reached,
        wall_s=wall_s,
        env_steps=1000,
        curve=[(500, 1.0, 20.0), (1000, wall_s, 480.0)],
        details={"whole_s": wall_s + 2.0, "cpu_s": 2 * wall_s},
        origin=ORIGIN,
    )


def test_each_row_has_a_preset_that_a_peer_can_equal():
    names = "ppo ppo-mujoco ppo-atari dqn-toy dqn-mountaincar dqn-atari sac-goals sac-mountaincar"
    for name in names.split():
        asked = equal(preset(name))
        found = list(variants(asked, is_zoo=False))
        assert len({(v["vector"], v["n_envs"], v["threads"]) for v in found}) == len(found) > 3
        if asked["algorithm"] == "ppo":
            batch = preset(name).trainer.batch_size
            assert {v["n_envs"] * v["settings"]["n_steps"] for v in found} == {batch}
    assert equal(preset("crossq")) == {}
    listed = zoo(ROWS["cartpole"], {"algorithm": "ppo"})
    assert {v["n_envs"] for v in variants(listed, is_zoo=True)} == {8}
    assert zoo(ROWS["breakout"], {"algorithm": "ppo"}) == {}


def test_a_peer_gets_the_fewest_environments_that_are_as_fast():
    made = [{"n_envs": n, "threads": t} for n, t in ((8, 1), (32, 1), (32, 2), (128, 1))]
    assert commands.choose(made, [500.0, 960.0, 970.0, 1000.0]) == {"n_envs": 32, "threads": 2}
    assert commands.choose(made, [500.0, 900.0, 940.0, 1000.0]) == {"n_envs": 128, "threads": 1}


def test_a_call_continues_and_sides_begin_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    monkeypatch.setattr(commands, "python_of", lambda _venv: Path("/"))
    asked = ["--list", "--only", "cartpole", "--seeds", "2", "--results", str(tmp_path)]
    assert commands.main(asked) == 0
    assert capsys.readouterr().out == "cartpole asyncrl 100\ncartpole asyncrl 101\n"
    keep(tmp_path, a_run("asyncrl", 100, 3.0))
    assert commands.main(asked) == 0
    left = ["sb3 100", "zoo 100", "zoo 101", "sb3 101", "asyncrl 101"]
    assert capsys.readouterr().out.split("\n")[:-1] == [f"cartpole {cell}" for cell in left]


def test_no_cell_begins_that_may_not_end_in_time(tmp_path: Path, capsys: Any):
    assert commands.main(["--only", "cartpole", "--minutes=0.01", "--results", str(tmp_path)]) == 0
    assert "the next call begins with cartpole asyncrl 100" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_table_compares_medians_and_says_where_it_is_not_faster():
    own = [a_run("asyncrl", seed, 4.0) for seed in (100, 101)]
    slow = [a_run("sb3", seed, 8.0) for seed in (100, 101)]
    late = [a_run("zoo", seed, 120.0, reached=False) for seed in (100, 101)]
    shown = render([*own, *slow, *late])
    assert "| 4.0 | 6.0 | 8 | 1,000 | 2 of 2 | 8.0 |" in shown
    assert "| **2.0** | not within 120 | 0 of 2 | **> 30.0** |" in shown
    assert "not faster" not in shown
    quick = [a_run("sb3", seed, 2.0) for seed in (100, 101)]
    assert "not faster on CartPole-v1, 475 (0.5 times as fast)" in render_short([*own, *quick])
    assert "today's settings: Acrobot-v1, -90; " in render_short(own)
