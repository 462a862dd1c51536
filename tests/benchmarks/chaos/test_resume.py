"""What counts as going on after a kill; that runs do so is in tests/integration/test_resume.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.checkpoint.checkpoint import Checkpoint
from benchmarks.chaos.resume import what_broke
from benchmarks.chaos.resumed_runs import same

LEDGER = {"produced": 100, "stored": 80, "dropped": 5, "lost": 0}
SAVED: dict[str, Any] = {
    "opt_steps": 40,
    "env_steps": 110,
    "agent_env_steps": 105,
    "run": {"ledger": LEDGER},
}


def told() -> dict[str, Any]:
    """Return what a life tells that goes on well; 15 transitions were in flight."""
    return {
        "begins": {
            "opt_steps": 40,
            "env_steps": 110,
            "agent_env_steps": 105,
            "epsilon": 0.5,
            "expected_epsilon": 0.5,
            "ledger": {**LEDGER, "lost": 15},
        },
        "first_step": {
            "agent_env_steps": 120,
            "epsilon": 0.4,
            "expected_epsilon": 0.4,
            "learning_rate": 0.1,
            "expected_learning_rate": 0.1 + 1e-9,
        },
        "ends": {
            "opt_steps": 60,
            "ledger": {
                "produced": 200,
                "stored": 180,
                "dropped": 5,
                "lost": 15,
                "in_flight": 0,
            },
        },
    }


def test_life_that_goes_on_is_whole() -> None:
    assert what_broke(SAVED, told()) == []
    killed = told()
    del killed["ends"]
    assert what_broke(SAVED, killed) == []


@pytest.mark.parametrize(
    ("moment", "name", "value", "said"),
    [
        ("begins", "opt_steps", 0, "opt_steps was saved as 40 and began as 0"),
        ("begins", "env_steps", 111, "env_steps was saved as 110"),
        ("begins", "agent_env_steps", 0, "agent_env_steps was saved as 105"),
        ("begins", "ledger", LEDGER, "ledger was saved"),
        ("begins", "epsilon", 1.0, "epsilon is 1.0"),
        ("first_step", "learning_rate", 0.2, "learning_rate is 0.2"),
        ("first_step", "agent_env_steps", 1, "environment steps fell"),
        ("ends", "opt_steps", 40, "counts less"),
        ("ends", "ledger", {**LEDGER, "in_flight": 15}, "does not add up"),
    ],
)
def test_life_that_does_not_go_on_says_where(
    moment: str, name: str, value: object, said: str
) -> None:
    life = told()
    life[moment][name] = value
    assert any(said in each for each in what_broke(SAVED, life))


def test_first_life_begins_with_nothing() -> None:
    life = told()
    life["begins"] |= {"opt_steps": 0, "env_steps": 0, "agent_env_steps": 0}
    assert what_broke(None, life) == []
    assert what_broke(None, told()) != []


def test_checkpoints_are_the_same_but_for_time() -> None:
    def checkpoint(value: float, **meta: float) -> Checkpoint:
        return Checkpoint({"model": {"w": np.full(2, value)}}, {"opt_steps": 1, **meta})

    assert same(checkpoint(1.0, wall_s=1.0), checkpoint(1.0, wall_s=2.0))
    assert not same(checkpoint(1.0), checkpoint(1.0 + 1e-15))
    assert not same(checkpoint(1.0), checkpoint(1.0, env_steps=3))
