"""Two copies of an environment side by side: are they alike, and do resets come when promised?"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from asyncrl.doctor.findings import Finding
from asyncrl.doctor.probe import Answer, Probe, kept, same

_MAX_STEPS = 200
_ENDS = 3
"""Steps with an episode's end that are looked at closely."""


def reproducible(a: Probe, b: Probe, seconds: float, seed: int = 0) -> Finding:
    """Do the same seed and the same actions give the same episodes?"""
    advice = (
        "Draw all random numbers from self.np_random after super().reset(seed=seed); otherwise "
        "runs cannot be repeated, and evaluations play other episodes each time."
    )

    def differ(what: str) -> Finding:
        seen = f"two copies with one seed and the same actions differ {what}"
        return Finding(level="warn", check="reproducible", seen=seen, advice=advice)

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
    return Finding(level="ok", check="reproducible", seen=text)


def seeds_differ(a: Probe, b: Probe, seconds: float, seed: int = 0) -> Finding:
    """Do other seeds give other episodes?"""
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
        return Finding(level="ok", check="seeds", seen="another seed gives other episodes")
    return Finding(
        level="warn",
        check="seeds",
        seen=f"another seed with the same actions gives the same {n_steps} steps",
        advice="Nothing to do if the task is meant to be deterministic; else draw from "
        "self.np_random after super().reset(seed=seed).",
    )


def autoreset(a: Probe, b: Probe, seconds: float, seed: int = 0) -> Finding:
    """Does a vector environment reset when its metadata says so?

    Where it says that the action after an episode's end is ignored, the copies get different ones.
    """
    mode = a.mode
    assert mode is not None  # noqa: S101  # a batch would have refused it
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
            return Finding(
                level="fail",
                check="autoreset",
                seen=f'metadata["autoreset_mode"] says {mode.name}, but {wrong}',
                advice="Correct the metadata, or make the vector environment with another mode; "
                "learning would take one episode's end and the next one's start for a transition.",
            )
    if not ends:
        return Finding(
            level="warn",
            check="autoreset",
            seen=f"{mode.name} by its own account; no episode ended, so that could not be checked",
            advice="Look for longer, with --seconds.",
        )
    return Finding(level="ok", check="autoreset", seen=f"{mode.name}, as seen at {ends} ends")


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
    # Where all episodes begin alike, the last observation may well be such a first one.
    if all(same(a.rows[i], final[i]) and not same(a.rows[i], first[i]) for i in ended):
        return "the observation at an episode's end is its last one, not the next one's first"
    return ""


def _not_ignored(a: Probe, b: Probe) -> str:
    ended = np.flatnonzero(a.ended)
    actions = a.sample()
    others = [*actions]
    for i in ended:
        others[i] = _another(a, actions[i])
    twins = _alike(a.rows, b.rows)
    try:
        after, other = a.step(actions), b.step(others)
    except Exception as error:  # whatever foreign code raises
        return f"the step after an episode's end raises {type(error).__name__}: {error}"
    for i in ended:
        if twins and not same(after.rows[i], other.rows[i]):
            return "the step after an episode's end depends on its action"
        if after.rewards[i] != 0 or after.terminated[i] or after.truncated[i]:
            return "the step after an episode's end has a reward or an end of its own"
    return ""


def _reset_too_much(a: Probe, b: Probe) -> str:
    others = np.flatnonzero(~a.ended)
    before = [*map(kept, a.rows)]
    for probe in (a, b):
        probe.reset_ended()
    for i in others:
        if not same(before[i], a.rows[i]):
            return "a reset of what had ended, by options['reset_mask'], changed the others too"
    return ""


def _another(probe: Probe, action: Any) -> Any:  # noqa: ANN401  # of any space
    for _ in range(20):
        for other in probe.sample():
            if not same(action, other):
                return other
    return action


def _same_answers(x: Answer, y: Answer) -> bool:
    flags = ((x.terminated, y.terminated), (x.truncated, y.truncated), (x.rewards, y.rewards))
    return _alike(x.rows, y.rows) and all(
        np.array_equal(np.asarray(p, float), np.asarray(q, float), equal_nan=True) for p, q in flags
    )


def _alike(a: list[Any], b: list[Any]) -> bool:
    return all(map(same, a, b))
