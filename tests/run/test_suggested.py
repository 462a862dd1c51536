"""The preset that suits an environment, and the command line without an agent."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from asyncrl.cli.main import main
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvDescription, EnvSpec
from asyncrl.envs.gym import EnvConfig
from asyncrl.run.preset_rules import RULES, EnvFacts, if_cheap, suggest, suggested_for

PAGE = Path(__file__).parents[2] / "docs" / "algorithms" / "index.md"
CHOICES = DiscreteSpec(3)


def box(*shape: int, dtype: str = "float32", categorical: bool = False) -> BoxSpec:
    low = np.zeros(shape, dtype)
    return BoxSpec(shape, dtype, low, low + 1, categorical=categorical)


@pytest.mark.parametrize(
    ("env", "obs", "action", "step_s", "preset"),
    [
        ("MountainCar-v0", box(2), CHOICES, 1e-5, "dqn-mountaincar"),
        ("MountainCarContinuous-v0", box(2), box(1), 1e-5, "sac-mountaincar"),
        ("Own-v0", box(2), CHOICES, 1e-5, "ppo"),
        ("Own-v0", box(dtype="int64", categorical=True), CHOICES, 1e-5, "dqn-toy"),
        ("Own-v0", box(4, 84, 84, dtype="uint8"), CHOICES, 1e-3, "dqn-atari"),
        ("Own-v0", box(4, 84, 84, dtype="uint8"), CHOICES, 1e-4, "ppo-atari"),
        ("Own-v0", box(64, 64, 3, dtype="uint8"), CHOICES, 1e-4, "ppo"),
        ("Own-v0", box(8), box(2), 5e-5, "ppo"),
        ("Own-v0", box(105), box(8), 5e-5, "ppo"),
        ("Own-v0", box(17), box(6), 5e-5, "ppo-walker"),
        ("Own-v0", box(17), box(6), 5e-3, "crossq-mujoco"),
    ],
)
def test_first_row_that_fits_is_taken(
    env: str, obs: BoxSpec, action: BoxSpec | DiscreteSpec, step_s: float, preset: str
) -> None:
    seen = EnvDescription(EnvSpec(obs, action), 1)
    assert suggest(EnvFacts(id=env, seen=seen, step_s=step_s)).preset == preset


def test_both_are_named_where_only_a_trial_shows_which() -> None:
    seen = EnvDescription(EnvSpec(box(17), box(6)), 1)
    assert if_cheap(seen) == "ppo-walker or ppo-mujoco"


@pytest.mark.processes
def test_what_random_actions_end_needs_another_preset() -> None:
    """One pendulum swings until its time limit, the other one falls."""
    pytest.importorskip("mujoco")
    names = "Taxi-v4", "Pendulum-v1", "InvertedPendulum-v5"
    found = [suggested_for(EnvConfig(id=name), timeout_s=60.0).preset for name in names]
    assert found == ["dqn-toy", "ppo-mujoco", "ppo"]


def test_page_shows_the_table() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Which preset")[2].partition("\n## ")[0]
    assert re.findall(r"\| `([a-z0-9-]+)` \|", section) == [rule.preset for rule in RULES]


@pytest.mark.processes
def test_train_without_an_agent_says_what_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--env", "CartPole-v1", "--mode", "sync", "--max-env-steps", "5000"]
    assert main(["train", *flags, "--run-dir", str(tmp_path / "run")]) == 0
    assert f"asyncrl train ppo {' '.join(flags)}" in capsys.readouterr().err
    assert main(["train", *flags, "--agent.clip", "0.1"]) == 2
    assert "--agent.clip" in capsys.readouterr().err
