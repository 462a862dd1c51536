"""What the facts of a probe mean for training: one pure function for each question."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.doctor.probe import Experience

Level = Literal["ok", "warn", "fail"]
"""`fail`: training stops here, or learns something wrong. `warn`: worth a look."""

_LARGE_REWARD = 100.0
_STALL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer to one question about an environment."""

    level: Level
    check: str
    """What was asked, in a word or two."""

    seen: str
    advice: str = ""
    """What to do; empty if nothing."""

    numbers: Mapping[str, float] = field(default_factory=dict)


def spaces(spec: EnvSpec) -> Finding:
    """What do observations look like?"""
    observation = spec.observation
    if isinstance(observation, BoxSpec):
        seen = f"observations {observation.shape} {observation.dtype}"
    else:
        fields = ", ".join(f"{name} {box.shape} {box.dtype}" for name, box in observation.fields)
        seen = f"observations of {len(observation.fields)} fields: {fields}"
    return Finding(level="ok", check="spaces", seen=seen)


def action_bounds(spec: EnvSpec) -> Finding:
    """Are there bounds that a policy can scale its actions to?"""
    action = spec.action
    if isinstance(action, DiscreteSpec):
        return Finding(level="ok", check="actions", seen=f"one of {action.n}")
    seen = f"{action.shape} {action.dtype} within {_range(action)}"
    if not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
        return Finding(
            level="fail",
            check="actions",
            seen=seen,
            advice="SAC scales its actions to the bounds: give the Box finite ones, for instance "
            "with gymnasium.wrappers.RescaleAction or in the environment.",
        )
    if (action.low >= action.high).any():
        return Finding(
            level="warn",
            check="actions",
            seen=f"{seen}; {int((action.low >= action.high).sum())} of them have no room",
            advice="Leave actions out that cannot differ.",
        )
    return Finding(level="ok", check="actions", seen=seen)


def observations(seen: Experience) -> Iterator[Finding]:
    """Are observations what their space promises?"""
    advice = {
        "shape": "Return what the space says, or correct the space.",
        "structure": "Return what the space says, or correct the space.",
        "dtype": "asyncrl converts what loses no kind of number, at each step: let the space say "
        "what `step` returns, best float32 or uint8.",
        "bounds": "Correct the bounds, or clip; networks may rely on them.",
    }
    for kind, found in seen.misfits.items():
        level: Level = "fail" if kind in {"shape", "structure"} else "warn"
        yield Finding(level=level, check="observations", seen=found.seen, advice=advice[kind])
    if not seen.misfits:
        yield Finding(
            level="ok", check="observations", seen=f"inside their space in {_steps(seen)}"
        )


def finite(seen: Experience) -> Finding:
    """Are there NaN and infinity?"""
    if not seen.not_finite:
        return Finding(level="ok", check="finite", seen="no NaN and no infinity in observations")
    return Finding(
        level="fail",
        check="finite",
        seen=f"observation {seen.not_finite}",
        advice="One such value ruins a model for good. Look for a division by zero or an unstable "
        "simulation; end the episode before, or clip.",
    )


def rewards(seen: Experience) -> Finding:
    """Are rewards finite numbers?"""
    if seen.bad_reward:
        return Finding(
            level="fail",
            check="rewards",
            seen=f"got {seen.bad_reward}",
            advice="Return one finite float.",
        )
    return Finding(level="ok", check="rewards", seen=f"finite numbers in {_steps(seen)}")


def reward_scale(told: Sequence[float]) -> Finding:
    """Are the rewards that the learner is told of a size that critics can learn?"""
    values = np.array(told, np.float64)
    numbers = {
        "reward_mean": float(values.mean()),
        "reward_std": float(values.std()),
        "reward_abs_max": float(np.abs(values).max()),
    }
    text = (
        f"mean {numbers['reward_mean']:.3g}, deviation {numbers['reward_std']:.3g}, largest "
        f"{numbers['reward_abs_max']:.3g} under random actions"
    )
    level: Level = "warn"
    advice = ""
    if numbers["reward_abs_max"] > _LARGE_REWARD:
        advice = "Scale or clip rewards: with targets this large, learning rates do not fit."
    elif not values.any():
        text = f"all of {len(values):,} were 0 under random actions"
        advice = "Rewards this rare need much exploration, or a denser reward."
    else:
        level = "ok"
    return Finding(level=level, check="reward scale", seen=text, advice=advice, numbers=numbers)


def endings(seen: Experience) -> Iterator[Finding]:
    """Do episodes end, and are the two ways of ending kept apart?"""
    if seen.bad_flag:
        yield Finding(
            level="warn",
            check="flags",
            seen=f"`terminated` or `truncated` was {seen.bad_flag}",
            advice="Return bools.",
        )
    ended = seen.episodes
    if not ended:
        yield Finding(
            level="warn",
            check="episodes",
            seen=f"no episode ended; the longest lasted {seen.longest} steps",
            advice="Set a time limit, as gymnasium.make(..., max_episode_steps=1000) does; without "
            "ends there are no returns to see, and evaluation cuts episodes itself.",
        )
        return
    both = sum(e.terminated and e.truncated for e in ended)
    text = (
        f"{len(ended)} ended, {sum(e.terminated for e in ended)} terminated and "
        f"{sum(e.truncated for e in ended)} truncated, {_median([e.length for e in ended]):.0f} "
        "steps long in the median"
    )
    if both == len(ended) > 1:
        yield Finding(
            level="fail",
            check="episodes",
            seen=f"{text}: both flags every time",
            advice="Set `terminated` where the task is over, and `truncated` where only time is: "
            "learning bootstraps from the one and not from the other.",
        )
    else:
        yield Finding(level="ok", check="episodes", seen=text)


def time_limit(seen: Experience) -> Finding:
    """Is a time limit told as one?"""
    if seen.time_limit is not None and seen.longest > seen.time_limit:
        return Finding(
            level="fail",
            check="time limit",
            seen=f"an episode lasted {seen.longest} steps, and the limit is {seen.time_limit}",
            advice="Wrap the environment in gymnasium.wrappers.TimeLimit, as gymnasium.make does.",
        )
    if any(e.truncated for e in seen.episodes):
        limit = "" if seen.time_limit is None else f"{seen.time_limit} steps, and "
        return Finding(level="ok", check="time limit", seen=f"{limit}episodes are truncated")
    length, count = _usual_length(seen)
    if count >= 3 and count >= len(seen.episodes) / 2 and length == seen.longest > 1:
        return Finding(
            level="warn",
            check="time limit",
            seen=f"{count} of {len(seen.episodes)} episodes were terminated after {length} steps, "
            "and none lasted longer",
            advice="If that is a limit of time, return `truncated` in place of `terminated`: the "
            "learner must not take running out of time for a bad end.",
        )
    if seen.time_limit is not None:
        text = f"{seen.time_limit} steps, which no episode reached"
        return Finding(level="ok", check="time limit", seen=text)
    return Finding(
        level="ok", check="time limit", seen="none is known, and no episode was truncated"
    )


def arrays(seen: Experience) -> Finding:
    """Does it write into arrays that it has handed out?"""
    text = "writes into arrays it returned before" if seen.reuses_arrays else "new ones each step"
    return Finding(
        level="ok", check="arrays", seen=f"{text}; asyncrl copies what an environment returns"
    )


def speed(step_s: Sequence[float], reset_s: float, n_envs: int, env_steps: int) -> Finding:
    """How long do steps and resets take, and what does that mean for an actor?"""
    median, p99 = _median(step_s), float(np.quantile(step_s, 0.99))
    rate = env_steps / math.fsum(step_s)
    numbers = {
        "step_median_s": median,
        "step_p99_s": p99,
        "reset_s": reset_s,
        "env_steps_per_s": rate,
    }
    text = (
        f"a step of {n_envs} takes {_time(median)} in the median and {_time(p99)} at the 99th "
        f"percentile, the first reset {_time(reset_s)}: one actor gives at most about "
        f"{float(f'{rate:.2g}'):,.0f} env steps/s, before its policy"
    )
    if p99 > max(_STALL_S, 20 * median):
        return Finding(
            level="warn",
            check="speed",
            seen=text,
            advice="Single steps stall all environments of an actor, most likely resets: make them "
            "cheaper, or step fewer environments in more actors.",
            numbers=numbers,
        )
    return Finding(level="ok", check="speed", seen=text, numbers=numbers)


def _usual_length(seen: Experience) -> tuple[int, int]:
    lengths = Counter(e.length for e in seen.episodes)
    return lengths.most_common(1)[0] if lengths else (0, 0)


def _range(action: BoxSpec) -> str:
    return f"[{action.low.min():g}, {action.high.max():g}]"


def _steps(seen: Experience) -> str:
    return f"{seen.env_steps:,} steps"


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else math.nan


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
