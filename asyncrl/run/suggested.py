"""Looks at an environment in a child process, and suggests a preset for it."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from asyncrl.core.env import (
    MakeBatchEnv,
    description_of,
    make_batch_env,
    plain_description,
    source_of,
)
from asyncrl.envs.gym import EnvConfig
from asyncrl.envs.spaces import random_allowed_actions
from asyncrl.fleet.in_child import run_in_child
from asyncrl.run.describe_env import PRELOAD
from asyncrl.run.preset_rules import EnvFacts, Suggestion, suggest

_STEPPING_S = 0.2
"""How long random actions are taken to measure a step."""


def suggested_for(env: EnvConfig, *, timeout_s: float) -> Suggestion:
    """Look at an environment in a child process, and return what suits it."""
    plain: dict[str, Any] = run_in_child(
        partial(_look, replace(env, n_envs=1).build),
        what="building the environment",
        timeout_s=timeout_s,
        preload=PRELOAD,
    )
    step_s = plain.pop("step_s")
    return suggest(EnvFacts(id=env.id, seen=description_of(plain), step_s=step_s))


def _look(make_env: MakeBatchEnv) -> dict[str, Any]:
    """Describe and time an environment, in the child."""
    seen = plain_description(source_of(make_env).describe(goals=True))
    return {**seen, "step_s": _median_step_s(make_env)}


def _median_step_s(make_env: MakeBatchEnv) -> float:
    env = make_batch_env(make_env)
    random, step_s = np.random.default_rng(0), list[float]()
    try:
        obs, until = env.reset(0), time.perf_counter() + _STEPPING_S
        while not step_s or time.perf_counter() < until:
            action = random_allowed_actions(env.spec, obs, random)
            begun = time.perf_counter()
            obs = env.step(action).obs
            step_s.append((time.perf_counter() - begun) / env.n_envs)
    finally:
        env.close()
    return float(np.median(step_s))
