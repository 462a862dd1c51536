"""The checks of an environment and their meaning for training: one function per check.

Checks of one environment are pure functions of recorded facts. Checks of two copies step them.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode

from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.errors import NOT_THEIRS, OURS, AsyncRLError, lines_of, places_of
from asyncrl.tools.doctor.probe import Answer, Experience, Probe, kept, same

Level = Literal["ok", "warn", "fail"]
"""`fail`: training stops here, or learns something wrong. `warn`: worth a look."""

_LARGE_REWARD = 100.0
_STALL_S = 0.05

_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
"""A frame in faulthandler's format; the newest comes first."""

_MAX_STEPS = 200
_ENDS = 3
"""Steps with an episode's end that are checked in detail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    level: Level
    check: str
    """Name of the check, one or two words."""

    seen: str
    advice: str = ""
    """What to do; empty if nothing."""

    numbers: Mapping[str, float] = field(default_factory=dict)


def ok(check: str, seen: str, *, numbers: Mapping[str, float] | None = None) -> Finding:
    """Return a finding that needs no action."""
    return Finding(level="ok", check=check, seen=seen, numbers=numbers or {})


def warn(
    check: str, seen: str, advice: str, *, numbers: Mapping[str, float] | None = None
) -> Finding:
    """Return a finding that is worth a look."""
    return Finding(level="warn", check=check, seen=seen, advice=advice, numbers=numbers or {})


def fail(check: str, seen: str, advice: str = "") -> Finding:
    """Return a finding that must be fixed before training."""
    return Finding(level="fail", check=check, seen=seen, advice=advice)


def raised(check: str, error: Exception, advice: str) -> Finding:
    """Return what foreign code raised, and where. Errors of asyncrl contain their own advice."""
    own = isinstance(error, AsyncRLError)
    seen, places = str(error) if own else f"{type(error).__name__}: {error}", places_of(error)
    if not own and not any(where.startswith("at ") for where in places):
        # The line of asyncrl that failed on the user's values.
        places += [f"at {line}" for line in lines_of(error) if line.startswith(OURS)][-1:]
    return fail(check, "; ".join([seen, *places]), "" if own else advice)


def place_in(stacks: str) -> str:
    """Return the newest line of the user's code in a faulthandler dump."""
    for name, line, function in _FRAME.findall(stacks):
        if not name.startswith(NOT_THEIRS):
            return f"; at {name}:{line} in {function}"
    return ""


def spaces(spec: EnvSpec) -> Finding:
    """What are the shapes and dtypes of observations?"""
    observation = spec.observation
    if isinstance(observation, BoxSpec):
        seen = f"observations {observation.shape} {observation.dtype}"
    else:
        fields = ", ".join(f"{name} {box.shape} {box.dtype}" for name, box in observation.fields)
        seen = f"observations of {len(observation.fields)} fields: {fields}"
    return ok("spaces", seen)


def action_bounds(spec: EnvSpec) -> Finding:
    """Are there finite bounds to which a policy can scale its actions?"""
    action = spec.action
    if isinstance(action, DiscreteSpec):
        return ok("actions", f"one of {action.n}{', as masks allow' if spec.masked else ''}")
    seen = f"{action.shape} {action.dtype} within {_range(action)}"
    if not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
        return fail(
            "actions",
            seen,
            "SAC scales its actions to the bounds: make the Box finite, in the environment or "
            "with gymnasium.wrappers.RescaleAction.",
        )
    if np.dtype(action.dtype).kind != "f" and not action.categorical:
        return fail("actions", seen, "Agents give a Box floats: make it float32, or MultiDiscrete.")
    if (action.low >= action.high).any():
        return warn(
            "actions",
            f"{seen}; in {int((action.low >= action.high).sum())} of them low is not below high",
            "Remove action components that cannot vary.",
        )
    return ok("actions", seen)


def observations(seen: Experience) -> Iterator[Finding]:
    """Do observations match their space?"""
    advice = {
        "shape": "Return observations of this shape, or correct the space.",
        "structure": "Return what the space declares, or correct the space.",
        "dtype": "asyncrl converts at each step what it can without loss: declare in the space "
        "what `step` returns, preferably float32 or uint8.",
        "precision": "Observations reach networks and agent.normalize_obs as float32: subtract an "
        "offset in the environment, such as the time at which the episode began.",
        "bounds": "Correct the bounds, or clip; networks may rely on them.",
    }
    for kind, found in seen.misfits.items():
        level: Level = "fail" if kind in {"shape", "structure"} else "warn"
        yield Finding(level=level, check="observations", seen=found.seen, advice=advice[kind])
    if not seen.misfits:
        yield ok("observations", f"match their space in {_steps(seen)}")


def finite(seen: Experience) -> Finding:
    """Are there NaN or infinite values?"""
    if not seen.not_finite:
        return ok("finite", "no NaN and no infinity in observations")
    return fail(
        "finite",
        f"observation {seen.not_finite}",
        "One such value ruins the model for good. Look for a division by zero or an unstable "
        "simulation; end the episode before, or clip.",
    )


def rewards(seen: Experience) -> Finding:
    """Are rewards finite numbers?"""
    if seen.bad_reward:
        return fail("rewards", f"got {seen.bad_reward}", "Return one finite float.")
    return ok("rewards", f"finite numbers in {_steps(seen)}")


def reward_scale(rewards: Sequence[float]) -> Finding:
    """Are rewards, as the learner receives them, of a scale that critics can learn?"""
    values = np.array(rewards, np.float64)
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
        advice = "Scale or clip rewards: default learning rates do not suit targets of this size."
    elif not values.any():
        text = f"all of {len(values):,} were 0 under random actions"
        advice = "Sparse rewards need much exploration, or a denser reward."
    else:
        level = "ok"
    return Finding(level=level, check="reward scale", seen=text, advice=advice, numbers=numbers)


def unused_mask(seen: Experience) -> Iterator[Finding]:
    """Does an environment give an action mask that is not used?"""
    if seen.unused_mask:
        yield warn(
            "action mask",
            "infos hold an action_mask, which is not used",
            "Add --env-wrappers asyncrl.envs.masks:ActionMasks, and agents choose allowed actions "
            "only.",
        )


def endings(seen: Experience) -> Iterator[Finding]:
    """Do episodes end, and are termination and truncation kept apart?"""
    if seen.bad_flag:
        yield warn("flags", f"`terminated` or `truncated` was {seen.bad_flag}", "Return bools.")
    ended = seen.episodes
    if not ended and seen.time_limit is not None:
        yield ok("episodes", f"none ended; the longest lasted {seen.longest} steps")
        return
    if not ended:
        yield warn(
            "episodes",
            f"no episode ended; the longest lasted {seen.longest} steps",
            "Set a time limit, as gymnasium.make(..., max_episode_steps=1000) does. Without ends "
            "there are no episode returns, and evaluation cuts episodes itself.",
        )
        return
    both = sum(e.terminated and e.truncated for e in ended)
    text = (
        f"{len(ended)} ended, {sum(e.terminated for e in ended)} terminated and "
        f"{sum(e.truncated for e in ended)} truncated, median length "
        f"{_median([e.length for e in ended]):.0f} steps"
    )
    if both == len(ended) > 1:
        yield fail(
            "episodes",
            f"{text}: both flags every time",
            "Set `terminated` where the task is over, and `truncated` where only time is: "
            "learning bootstraps after the latter and not after the former.",
        )
    else:
        yield ok("episodes", text)


def time_limit(seen: Experience) -> Finding:
    """Does the time limit set `truncated`?"""
    if seen.time_limit is not None and seen.longest > seen.time_limit:
        return fail(
            "time limit",
            f"an episode lasted {seen.longest} steps, but the limit is {seen.time_limit}",
            "Wrap the environment in gymnasium.wrappers.TimeLimit, as gymnasium.make does.",
        )
    if any(e.truncated for e in seen.episodes):
        limit = "" if seen.time_limit is None else f"{seen.time_limit} steps, and "
        return ok("time limit", f"{limit}episodes are truncated")
    length, count = _usual_length(seen)
    if count >= 3 and count >= len(seen.episodes) / 2 and length == seen.longest > 1:
        return warn(
            "time limit",
            f"{count} of {len(seen.episodes)} episodes were terminated after {length} steps, "
            "and none lasted longer",
            "If that is a time limit, return `truncated` instead of `terminated`: otherwise the "
            "learner takes a timeout for a failure.",
        )
    if seen.time_limit is not None:
        text = f"{seen.time_limit} steps, which no episode reached"
        return ok("time limit", text)
    return ok("time limit", "none is known, and no episode was truncated")


def arrays(seen: Experience) -> Finding:
    """Does the environment overwrite arrays that it has returned?"""
    text = "overwrites arrays it returned before" if seen.reuses_arrays else "new ones each step"
    return ok("arrays", f"{text}; asyncrl copies what an environment returns")


def speed(step_s: Sequence[float], reset_s: float, n_envs: int, env_steps: int) -> Finding:
    """How long do steps and resets take, and how many steps per second can one actor make?"""
    median, p99 = _median(step_s), float(np.quantile(step_s, 0.99))
    rate = env_steps / math.fsum(step_s)
    numbers = {
        "step_median_s": median,
        "step_p99_s": p99,
        "reset_s": reset_s,
        "env_steps_per_s": rate,
    }
    text = (
        f"{n_envs} environments take {_time(median)} per step in the median and {_time(p99)} at "
        f"the 99th percentile, the first reset {_time(reset_s)}: one actor makes at most about "
        f"{float(f'{rate:.2g}'):,.0f} env steps/s, not counting its policy"
    )
    if p99 > max(_STALL_S, 20 * median):
        return warn(
            "speed",
            text,
            "Some steps, most likely resets, are slow and block all environments of an actor: "
            "make them cheaper, or use more actors with fewer environments each.",
            numbers=numbers,
        )
    return ok("speed", text, numbers=numbers)


def _usual_length(seen: Experience) -> tuple[int, int]:
    lengths = Counter(e.length for e in seen.episodes)
    return lengths.most_common(1)[0] if lengths else (0, 0)


def _range(action: BoxSpec) -> str:
    alike = len(np.unique(action.low)) == len(np.unique(action.high)) == 1
    widest = f"[{action.low.min():g}, {action.high.max():g}]"
    return widest if alike else f"different bounds, at most {widest}"


def _steps(seen: Experience) -> str:
    return f"{seen.env_steps:,} steps"


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else math.nan


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


# --- two copies of an environment side by side ---------------------------------------------------


def reproducible(a: Probe, b: Probe, seconds: float, seed: int = 0) -> Finding:
    """Do the same seed and the same actions give the same episodes?"""
    advice = (
        "Draw all random numbers from self.np_random after super().reset(seed=seed); otherwise "
        "runs are not reproducible, and every evaluation plays different episodes."
    )

    def differ(what: str) -> Finding:
        seen = f"two copies with one seed and the same actions differ {what}"
        return warn("reproducible", seen, advice)

    first = [*map(kept, a.reset(seed))]
    if not _alike(first, b.reset(seed)):
        return differ("in the first observation")
    until = time.perf_counter() + seconds
    n_steps = 0
    while n_steps < _MAX_STEPS and time.perf_counter() < until:
        n_steps += 1
        actions = a.sample()
        if not _same_answers(a.step(actions), b.step(actions)):
            return differ(f"after {n_steps} steps")
        for probe in (a, b):
            probe.reset_ended()
        if not _alike(a.rows, b.rows):
            return differ(f"after {n_steps} steps, in the first observation of a later episode")
    if not _alike(first, a.reset(seed)):
        return differ("when one is reset with that seed again")
    text = f"two copies with one seed and the same actions agree in {n_steps} steps"
    return ok("reproducible", text)


def seeds_differ(a: Probe, b: Probe, seconds: float, seed: int = 0) -> Finding:
    """Do different seeds give different episodes?"""
    n_steps = 0
    alike = _alike(a.reset(seed), b.reset(seed + a.n_envs))
    until = time.perf_counter() + seconds
    while alike and n_steps < _MAX_STEPS and time.perf_counter() < until:
        n_steps += 1
        actions = a.sample()
        alike = _same_answers(a.step(actions), b.step(actions))
        for probe in (a, b):
            probe.reset_ended()
    if not alike:
        return ok("seeds", "different seeds give different episodes")
    return warn(
        "seeds",
        f"different seeds with the same actions give the same {n_steps} steps",
        "Ignore this if the task is deterministic by design; otherwise draw from self.np_random "
        "after super().reset(seed=seed).",
    )


def autoreset(a: Probe, b: Probe, seconds: float, seed: int = 0) -> Finding:
    """Does a vector environment reset as its metadata says?

    With NEXT_STEP, the action after an episode's end must be ignored: the copies get different
    ones.
    """
    mode = a.mode
    assert mode is not None  # noqa: S101  # a batch would have rejected it
    ends = 0
    first = [*map(kept, a.reset(seed))]
    b.reset(seed)
    until = time.perf_counter() + seconds
    while ends < _ENDS and time.perf_counter() < until:
        actions = a.sample()
        answer = a.step(actions)
        b.step(actions)
        if not a.ended.any():
            continue
        ends += 1
        wrong = _contradiction(first, a, b, answer)
        if wrong:
            return fail(
                "autoreset",
                f'metadata["autoreset_mode"] says {mode.name}, but {wrong}',
                "Correct the metadata, or make the vector environment with another mode; "
                "otherwise learning takes one episode's end and the next one's start for a "
                "transition.",
            )
    if not ends:
        return warn(
            "autoreset",
            f"{mode.name} according to the metadata; no episode ended, so this was not checked",
            "Check for longer, with --seconds.",
        )
    return ok("autoreset", f"{mode.name}, confirmed at {ends} ends")


def _contradiction(first: list[Any], a: Probe, b: Probe, answer: Answer) -> str:
    final = answer.infos.get("final_obs")
    if a.mode is AutoresetMode.SAME_STEP:
        return _not_final(first, a, final)
    if final is not None:
        return 'an episode ended with infos["final_obs"], as in SAME_STEP'
    if a.mode is AutoresetMode.NEXT_STEP:
        return _not_ignored(a, b)
    return _reset_too_much(a, b)


def _not_final(first: list[Any], a: Probe, final: Any) -> str:  # noqa: ANN401  # from foreign code
    ended = np.flatnonzero(a.ended)
    if final is None or any(final[i] is None for i in ended):
        return 'an episode ended without infos["final_obs"]'
    # If all episodes begin alike, the last observation may equal a first one.
    if all(same(a.rows[i], final[i]) and not same(a.rows[i], first[i]) for i in ended):
        return (
            "the observation at an episode's end is its last one, not the first of the next episode"
        )
    return ""


def _not_ignored(a: Probe, b: Probe) -> str:
    ended = np.flatnonzero(a.ended)
    actions = a.sample()
    others = [*actions]
    for i in ended:
        others[i] = _another(a, actions[i])
    comparable = _alike(a.rows, b.rows)
    try:
        after, other = a.step(actions), b.step(others)
    except Exception as error:  # foreign code may raise anything
        return f"the step after an episode's end raises {type(error).__name__}: {error}"
    for i in ended:
        if comparable and not same(after.rows[i], other.rows[i]):
            return "the step after an episode's end depends on its action"
        if after.rewards[i] != 0 or after.terminated[i] or after.truncated[i]:
            return "the step after an episode's end has a reward or ends an episode"
    return ""


def _reset_too_much(a: Probe, b: Probe) -> str:
    others = np.flatnonzero(~a.ended)
    before = [*map(kept, a.rows)]
    for probe in (a, b):
        probe.reset_ended()
    for i in others:
        if not same(before[i], a.rows[i]):
            return (
                "resetting the ended environments with options['reset_mask'] changed the others too"
            )
    return ""


def _another(probe: Probe, action: Any) -> Any:  # noqa: ANN401  # of any space
    for _ in range(20):
        for other in probe.sample():
            if not same(action, other):
                return other
    return action


def _same_answers(x: Answer, y: Answer) -> bool:
    flags = ((x.terminated, y.terminated), (x.truncated, y.truncated), (x.rewards, y.rewards))
    return _alike(x.rows, y.rows) and all(_alike(p, q) for p, q in flags)


def _alike(a: list[Any], b: list[Any]) -> bool:
    return all(map(same, a, b))
