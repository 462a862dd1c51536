"""Schedules on the command line: what may be written, and what comes of it."""

from __future__ import annotations

import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.parts.exploration import EpsilonGreedy, Softmax
from asyncrl.agents.parts.schedules import Schedule
from asyncrl.cli.flags import read_setting, show_setting
from asyncrl.cli.main import main
from asyncrl.cli.train import parse

LINE = Schedule(points=((0, 3e-4), (1_000_000, 0.0)))
STEPS = Schedule(points=((0, 1.0), (500, 0.1)), interpolate=False)


@pytest.mark.parametrize(
    ("text", "setting"),
    [("3e-4", 3e-4), ("7", 7.0), ("0:3e-4,1e6:0", LINE), ("steps,0:1,500:0.1", STEPS)],
)
def test_a_number_or_points(text: str, setting: float | Schedule) -> None:
    assert read_setting(text) == setting
    assert read_setting(show_setting(setting)) == setting


def test_flags_take_numbers_and_schedules() -> None:
    greedy = "agent.exploration:epsilon-greedy"
    softmax = "agent.exploration:softmax"
    for flags, expected in (
        (
            [greedy, "--agent.exploration.epsilon", "steps,0:1,500:0.1"],
            EpsilonGreedy(epsilon=STEPS),
        ),
        ([greedy], EpsilonGreedy()),
        ([softmax, "--agent.exploration.temperature", "2"], Softmax(temperature=2.0)),
    ):
        assert parse(["dqn", *flags]).config.agent == DQNConfig(exploration=expected)
    agent = parse(["dqn", "--agent.learning-rate", "0:3e-4,1e6:0"]).config.agent
    assert agent == DQNConfig(learning_rate=LINE)


def test_the_user_reads_what_is_wrong_with_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    greedy = ["agent.exploration:epsilon-greedy", "--agent.exploration.epsilon", "0:x"]
    assert main(["train", "dqn", *greedy]) != 0
    assert "expected a number, or points" in " ".join(capsys.readouterr().err.split())


def test_whole_numbers_may_have_an_exponent() -> None:
    config = parse(["dqn", "--max-env-steps", "1e5", "--actors", "2e0"]).config
    assert (config.max_env_steps, config.actors) == (100_000, 2)
