"""Naive streams of experience, and what must become of them. Used by several tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asyncrl.actor.outbox import Outbox
from asyncrl.actor.step_processor import OneStep, Step
from asyncrl.core.agent import Act
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, EnvStep
from asyncrl.core.messages import Experience
from asyncrl.core.segment import SegmentConfig, SegmentSchema, make_schema
from asyncrl.core.types import ModelVersion
from tests.support.sample_messages import PEER

SPEC = EnvSpec(BoxSpec((1,), "float32", np.full(1, -np.inf), np.full(1, np.inf)), DiscreteSpec(2))


@dataclass(frozen=True)
class Transition:
    """One step as the naive loop saw it; observations are numbers that occur once."""

    obs: float
    action: int
    reward: float
    terminated: bool
    truncated: bool
    next_obs: float


def schema(length: int, lookahead: int, frame_stack: int = 1) -> SegmentSchema:
    """Return the schema of one-number observations, or of one-number frames."""
    columns = OneStep().columns(SPEC, ())
    return make_schema(columns, length=length, lookahead=lookahead, frame_stack=frame_stack)


def play(
    ends: list[list[str]], outbox: Outbox, *, finish: bool = True
) -> tuple[list[list[Transition]], list[Experience]]:
    """Step environments in lock-step through the given ends: "" continues, "T" or "C" ends.

    Returns what happened in each environment, and the resulting messages.
    """
    n_envs, n_steps = len(ends), len(ends[0])
    processor = OneStep()
    histories: list[list[Transition]] = [[] for _ in ends]
    messages: list[Experience] = []
    fresh = iter(range(10_000_000))
    obs = np.array([[next(fresh)] for _ in ends], np.float32)
    for t in range(n_steps):
        kinds = [stream[t] for stream in ends]
        final = np.array([[next(fresh)] for _ in ends], np.float32)
        after = final.copy()
        for i, kind in enumerate(kinds):
            if kind:
                after[i] = next(fresh)
        terminated = np.array(["T" in kind for kind in kinds])
        truncated = np.array(["C" in kind for kind in kinds])
        action = np.array([(t + i) % 2 for i in range(n_envs)])
        reward = np.array([100 * i + t + 1 for i in range(n_envs)], np.float32)
        outcome = EnvStep(after, reward, terminated, truncated, final)
        for rows in processor.process(Step(obs, Act(action), outcome, ModelVersion(t))):
            outbox.push(rows)
        for i in range(n_envs):
            histories[i].append(
                Transition(
                    float(obs[i, 0]),
                    int(action[i]),
                    float(reward[i]),
                    bool(terminated[i]),
                    bool(truncated[i]),
                    float(final[i, 0]),
                )
            )
        obs = after
        messages += take_all(outbox, n_steps)
    if finish:
        for rows in processor.finish(obs):
            outbox.push(rows)
        outbox.finish()
        messages += take_all(outbox, n_steps)
    return histories, messages


def take_all(outbox: Outbox, env_steps: int = 0) -> list[Experience]:
    """Take every message that is ready."""
    messages = []
    while (message := outbox.take(ModelVersion(0), env_steps)) is not None:
        messages.append(message)
    return messages


def make_outbox(n_envs: int, length: int, lookahead: int, frame_stack: int = 1) -> Outbox:
    """Return an outbox that never sends because time has passed."""
    config = SegmentConfig(length=length)
    return Outbox(PEER, schema(length, lookahead, frame_stack), config, n_envs)


def n_step_return(
    history: list[Transition], at: int, n: int, gamma: float
) -> tuple[float, float, float]:
    """Return reward, next observation and discount of a naive n-step return."""
    reward, discount = 0.0, 1.0
    for k in range(n):
        step = history[at + k]
        reward += discount * step.reward
        discount *= gamma
        if step.terminated or step.truncated or at + k + 1 == len(history):
            break
    return reward, step.next_obs, 0.0 if step.terminated else discount
