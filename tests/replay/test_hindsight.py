"""Hindsight relabels transitions with goals that were achieved later in the same episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from asyncrl.actor.outbox import Outbox
from asyncrl.actor.step_processor import OneStep, Step
from asyncrl.core.agent import Act
from asyncrl.core.env import BoxSpec, EnvSpec, EnvStep, PackedSpec
from asyncrl.core.errors import ConfigError, EnvironmentFault
from asyncrl.core.messages import Experience
from asyncrl.core.named import Named
from asyncrl.core.replay_buffer import in_batches
from asyncrl.core.segment import SegmentConfig, make_schema
from asyncrl.core.types import Array, ModelVersion
from asyncrl.replay.hindsight import HindsightReplay, HindsightReplayConfig
from tests.support.streams import PEER, SPEC, take_all

LENGTH = 4
GAMMA = 0.5


def packed(**shapes: tuple[int, ...]) -> EnvSpec:
    """Return a spec of observations with these fields of float32."""
    boxes = ((n, BoxSpec(s, "float32", np.zeros(s), np.ones(s))) for n, s in shapes.items())
    return EnvSpec(PackedSpec(tuple(boxes)), SPEC.action)


GOALS = packed(observation=(2,), achieved_goal=(1,), desired_goal=(1,))
FIELDS: Any = GOALS.observation


def distance(achieved: Array, desired: Array, info: Mapping[str, Any]) -> Array:
    assert info == {}
    return -np.abs(achieved - desired)[:, 0]


def one_number(achieved: Array, desired: Array, info: Mapping[str, Any]) -> float:  # noqa: ARG001
    return 1.0


def config(**settings: Any) -> HindsightReplayConfig:
    named = Named("tests.replay.test_hindsight:distance")
    return HindsightReplayConfig(
        **{"capacity": 400, "gamma": GAMMA, "horizon": 5, "compute_reward": named} | settings
    )


def messages(lookahead: int, episodes: list[int], ends: str = "C") -> list[Experience]:
    """Return episodes of these lengths: the goal of episode k is 1000 + k, rewards are 7.

    The goal achieved by the observation after step t is `100 * k + t`.
    """
    schema = make_schema(OneStep().columns(GOALS, ()), length=LENGTH, lookahead=lookahead)
    outbox = Outbox(PEER, schema, SegmentConfig(length=LENGTH), 1)
    processor = OneStep()

    def obs(k: int, t: int) -> Array:
        numbers = {"achieved_goal": 100 * k + t, "desired_goal": 1000 + k, "observation": t}
        return FIELDS.pack(
            {n: np.full((1, *box.shape), numbers[n], np.float32) for n, box in FIELDS.fields}
        )

    found = []
    for k, n_steps in enumerate(episodes):
        for t in range(n_steps):
            over = np.array([t + 1 == n_steps])
            after = obs(k + 1, 0) if over else obs(k, t + 1)
            never = np.array([False])
            flags = (over, never) if ends == "T" else (never, over)
            outcome = EnvStep(after, np.full(1, 7, np.float32), *flags, obs(k, t + 1))
            step = Step(obs(k, t), Act(np.array([t % 2])), outcome, ModelVersion(0))
            for rows in processor.process(step):
                outbox.push(rows)
        found += take_all(outbox)
    for rows in processor.finish(obs(len(episodes), 0)):
        outbox.push(rows)
    outbox.finish()
    return found + take_all(outbox)


def filled(episodes: list[int], ends: str = "C", seed: int = 0, **settings: Any) -> HindsightReplay:
    made = config(**settings).for_goals(GOALS, None)
    sent = messages(made.lookahead, episodes, ends)
    schema = make_schema(OneStep().columns(GOALS, ()), length=LENGTH, lookahead=made.lookahead)
    buffer = made.build(schema, seed)
    for message in sent:
        buffer.push(message.columns, message.rows)
    return buffer


def fields(packed_rows: Array) -> dict[str, Array]:
    return {name: column[:, 0] for name, column in FIELDS.unpack(packed_rows).items()}


# --- what is sampled ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("ends", ["C", "T"])
def test_goals_are_those_achieved_later_in_the_episode(n_step: int, ends: str) -> None:
    episodes = [7, 1, 12, 3]
    buffer = filled(episodes, ends, n_step=n_step, relabelled=1.0)
    batch = buffer.sample(2000)
    now, after = fields(batch["obs"]), fields(batch["next_obs"])
    np.testing.assert_array_equal(now["desired_goal"], after["desired_goal"])
    found: dict[float, set[float]] = {}
    for k in range(2000):
        achieved, goal = float(now["achieved_goal"][k]), float(now["desired_goal"][k])
        found.setdefault(achieved, set()).add(goal)
        number, t = divmod(int(achieved), 100)
        steps = min(n_step, episodes[number] - t)
        rewards = [-abs(achieved + i + 1 - goal) * GAMMA**i for i in range(steps)]
        assert batch["reward"][k] == pytest.approx(sum(rewards))
        assert after["achieved_goal"][k] == achieved + steps
        ended = ends == "T" and t + steps == episodes[number]
        assert batch["discount"][k] == pytest.approx(0 if ended else GAMMA**steps)
    for number, length in enumerate(episodes):
        for t in range(length):
            goals = {100.0 * number + later for later in range(t + 1, length + 1)}
            within = {goal for goal in goals if goal <= 100 * number + t + 5}
            assert found[100.0 * number + t] == within, "all of these, and no others"


@pytest.mark.parametrize("relabelled", [0.75, 0.0])
def test_a_share_of_each_batch_is_relabelled_and_the_rest_as_it_was(relabelled: float) -> None:
    buffer = filled([7, 12], relabelled=relabelled)
    for batch in in_batches(buffer.sample(4 * 1000), 1000):
        kept = fields(batch["obs"])["desired_goal"] >= 1000
        assert kept.mean() == pytest.approx(1 - relabelled, abs=0.06)
        assert set(batch["reward"][kept]) == {7.0}
        assert (batch["reward"][~kept] <= 0).all()


def test_overwritten_segments_give_no_goals() -> None:
    made = config(capacity=3 * LENGTH, relabelled=1.0).for_goals(GOALS, None)
    buffer = filled([9] * 30, capacity=3 * LENGTH, relabelled=1.0)
    assert made.capacity == buffer.capacity
    batch = buffer.sample(500)
    now = fields(batch["obs"])
    ahead = now["desired_goal"] - now["achieved_goal"]
    assert ahead.min() >= 1
    assert ahead.max() <= 5


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: config().for_goals(SPEC, None), "are one array"),
        (
            lambda: config().for_goals(packed(observation=(2,), desired_goal=(1,)), None),
            "observation, desired_goal",
        ),
        (
            lambda: config().for_goals(packed(achieved_goal=(2,), desired_goal=(1,)), None),
            r"shape \(2,\)",
        ),
        (lambda: config(compute_reward=None).for_goals(GOALS, None), "define it"),
        (lambda: config(device="cpu"), r"replay\.device"),
        (
            lambda: config().build(
                make_schema(OneStep().columns(GOALS, ()), length=4, lookahead=5), 0
            ),
            "environment with goals",
        ),
    ],
)
def test_what_has_no_goals_is_refused(make: Callable[[], object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make()


def test_reward_of_one_pair_only_is_a_fault() -> None:
    named = Named("tests.replay.test_hindsight:one_number")
    buffer = filled([7], compute_reward=named, relabelled=1.0)
    with pytest.raises(EnvironmentFault, match="for 5 pairs of goals; it must compute many"):
        buffer.sample(5)
