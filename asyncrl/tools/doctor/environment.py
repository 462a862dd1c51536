"""Checks whether an environment is ready for training: steps it and reports findings and advice.

Relies on nothing that a batch would check: it tests spaces, seeds, ends of episodes and resets.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import psutil

from asyncrl.core.agent import is_agent_config
from asyncrl.core.env import BatchEnv
from asyncrl.core.errors import ConfigError
from asyncrl.core.launcher import ActorExit, Progress, Spec
from asyncrl.core.messages import Peer
from asyncrl.core.settings import load_object
from asyncrl.envs.gym import EnvConfig
from asyncrl.envs.spaces import random_allowed_actions
from asyncrl.fleet.in_child import CHILD_ID
from asyncrl.fleet.local import LocalLauncher, pickled
from asyncrl.fleet.restart_policy import cause_of
from asyncrl.run.preset_rules import EnvFacts, suggest
from asyncrl.tools.doctor import findings
from asyncrl.tools.doctor.agent import examine_anywhere
from asyncrl.tools.doctor.findings import Finding, fail, ok, warn
from asyncrl.tools.doctor.probe import Probe, play

_LEAVE_S = 2.0
"""Timeout for child processes to exit after `close`."""

_SHARES = {"copies": 0.2, "play": 0.4, "resets": 0.15, "speed": 0.25}
"""Shares of the time budget."""

_FIRST = "Fix this first: it makes actors fail."

_HELPERS = "multiprocessing.resource_tracker", "multiprocessing.forkserver"
"""Processes of Python's own, which end with their parent."""


def diagnose(
    config: EnvConfig,
    *,
    seconds: float = 10.0,
    seed: int = 0,
    announce: Callable[[str], None] = lambda _: None,
) -> Iterator[Finding]:
    """Check these environments for about `seconds`, and yield the findings.

    Args:
        config: The environments that an actor would step.
        seconds: Time budget for stepping.
        seed: Seed of episodes and actions.
        announce: Called with the name of each stage before it begins, which shows what crashed the
            process.
    """
    examination = _Examination(config, seconds, seed)
    try:
        for name, stage in examination.stages():
            announce(name)
            try:
                yield from stage()
            except Exception as error:  # foreign code may raise anything
                yield findings.raised(name, error, _FIRST)
                break
        announce("close")
        yield from examination.close()
    finally:
        examination.release()


class _Examination:
    """Two copies to compare, and the batch that an actor would step."""

    def __init__(self, config: EnvConfig, seconds: float, seed: int) -> None:
        self._config = config
        self._seconds = {name: share * seconds for name, share in _SHARES.items()}
        self._seed = seed
        self._made = ExitStack()
        self._probes: list[Probe] = []
        self._children = set(_children())

    def stages(self) -> list[tuple[str, Callable[[], Iterator[Finding]]]]:
        """Return the stages in order; each depends on those before."""
        return [
            ("make", self._make),
            ("resets", self._check_resets),
            ("two copies", self._compare),
            ("play", self._play),
            ("batch", self._measure),
        ]

    def close(self) -> Iterator[Finding]:
        """Close everything, and look for processes that remain."""
        try:
            self._made.close()
        except Exception as error:  # foreign code may raise anything
            yield findings.raised("close", error, _FIRST)
            return
        started = [p for p in _children() if p not in self._children]
        _, left = psutil.wait_procs(started, timeout=_LEAVE_S)
        if left:
            yield warn(
                "close",
                f"{len(left)} processes still run after close: {', '.join(map(_name, left))}",
                "End them in `close`: actors are restarted, and every restart would leave more of "
                "them.",
            )
        else:
            yield ok("close", "leaves no process behind")

    def release(self) -> None:
        """Close what is still open."""
        self._made.close()

    def _make(self) -> Iterator[Finding]:
        for _ in range(2):
            env = self._config.make()
            self._made.callback(env.close)
            self._probes.append(Probe(env, self._seed))
        self._batch: BatchEnv = self._config.build()
        self._made.callback(self._batch.close)
        yield ok("make", self._kind())
        pickled(self._config.build)
        yield ok("factory", "can be sent to an actor's process")
        yield findings.spaces(self._batch.spec)
        yield findings.action_bounds(self._batch.spec)

    def _check_resets(self) -> Iterator[Finding]:
        a, b = self._probes
        if a.vector:
            yield findings.autoreset(a, b, self._seconds["resets"], self._seed)

    def _compare(self) -> Iterator[Finding]:
        half = self._seconds["copies"] / 2
        a, b = self._probes
        yield findings.reproducible(a, b, half, self._seed)
        yield findings.seeds_differ(a, b, half, self._seed)

    def _play(self) -> Iterator[Finding]:
        seen = play(self._probes[0], self._seconds["play"], seed=self._seed)
        yield from findings.observations(seen)
        yield findings.finite(seen)
        yield findings.rewards(seen)
        yield from findings.unused_mask(seen)
        yield from findings.endings(seen)
        yield findings.time_limit(seen)
        yield findings.arrays(seen)

    def _measure(self) -> Iterator[Finding]:
        batch = self._batch
        random = np.random.default_rng(self._seed)
        started = time.perf_counter()
        obs = batch.reset(self._seed)
        reset_s = time.perf_counter() - started
        until = time.perf_counter() + self._seconds["speed"]
        step_s: list[float] = []
        rewards: list[float] = []
        fails = False
        while not step_s or time.perf_counter() < until:
            action = random_allowed_actions(batch.spec, obs, random)  # not measured
            started = time.perf_counter()
            outcome = batch.step(action)
            step_s.append(time.perf_counter() - started)
            obs, fails = outcome.obs, fails or bool(outcome.terminated.any())
            stepped = slice(None) if outcome.stepped is None else outcome.stepped
            rewards += outcome.reward[stepped].tolist()
        yield findings.reward_scale(rewards)
        yield findings.speed(step_s, reset_s, batch.n_envs, len(rewards))
        yield self._preset(float(np.median(step_s)) / batch.n_envs, fails=fails)

    def _preset(self, step_s: float, *, fails: bool) -> Finding:
        seen = self._config.build.describe(goals=True)
        found = suggest(EnvFacts(id=self._config.id, seen=seen, step_s=step_s, fails=fails))
        text = f"{found.preset} suits it: {found.why}"
        return ok("preset", f"{text}; asyncrl train --env {self._config.id} takes it")

    def _kind(self) -> str:
        probe = self._probes[0]
        what = "plain environments"
        if probe.vector and probe.mode is not None:
            what = f"one vector environment, autoreset mode {probe.mode.name}"
        return f"{self._batch.n_envs} of {self._config.id}: {what}"


def _children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if not _is_pythons_own(p)]


def _is_pythons_own(process: psutil.Process) -> bool:
    try:
        return any(name in " ".join(process.cmdline()) for name in _HELPERS)
    except psutil.Error:
        return True  # has ended in the meantime


def _name(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.name()}"
    except psutil.Error:
        return str(process.pid)


_SLICE_S = 0.2
"""Interval in which the report is read."""

_KILL_S = 10.0

_CHILD = Peer(actor_id=CHILD_ID, incarnation=0)

_DONE = "done"
"""The last message of the process. One that ends without it has failed."""


def examine(
    config: EnvConfig, *, seconds: float, seed: int, patience_s: float, agent: str = ""
) -> Iterator[Finding]:
    """Run the checks in a child process and yield the findings; if it crashes or hangs, a failure.

    The process is started and ended as actors are, with all of its children. It is killed if it
    reports nothing for `seconds + patience_s`. If `agent` is the path of an agent's config, that
    agent is checked, in the spaces of the environment.
    """
    with LocalLauncher(names={CHILD_ID: "examination"}) as launcher:
        path = launcher.directory / "report"
        path.touch(0o600)
        found = partial(_found, config, seconds, seed, agent)
        launcher.launch(_CHILD, _Reports(found, path))
        with path.open("rb") as report:
            yield from _reported(launcher, report, seconds + patience_s)


def _reported(launcher: LocalLauncher, report: BinaryIO, quiet_s: float) -> Iterator[Finding]:
    """Yield the findings that the process reports, and how it ended if it failed."""
    doing, data, heard = "start", b"", time.monotonic()
    ends: list[ActorExit] = []
    while doing != _DONE:
        ends = launcher.exits(_SLICE_S)
        *lines, data = (data + report.read()).split(b"\n")
        for message in map(json.loads, lines):
            heard = time.monotonic()
            doing = message.pop("doing", doing)
            if message:
                yield Finding(**message)
        if ends and doing != _DONE:
            yield _died(doing, ends[0])
            return
        if time.monotonic() - heard > quiet_s:
            launcher.kill(_CHILD, with_stacks=True)
            yield _hung(doing, quiet_s, launcher.exits(_KILL_S))
            return
    if not ends:
        launcher.exits(_LEAVE_S)  # wait, so that its output comes first


@dataclass(frozen=True, slots=True)
class _Reports(Spec):
    """Writes findings to a file, in the process of the environment."""

    found: Callable[[Callable[[str], None]], Iterator[Finding]]
    path: Path

    def run(self, peer: Peer, progress: Progress) -> None:
        """Write them."""
        with self.path.open("ab", buffering=0) as report:

            def send(message: Mapping[str, Any]) -> None:
                report.write((json.dumps(message) + "\n").encode())

            def announce(doing: str) -> None:
                send({"doing": doing})

            for finding in self.found(announce):
                send(asdict(finding))
            announce(_DONE)


def _found(
    config: EnvConfig, seconds: float, seed: int, agent: str, announce: Callable[[str], None]
) -> Iterator[Finding]:
    if agent:
        return _agent_in(agent, config, announce)
    return _agent(config.id, announce) or diagnose(
        config, seconds=seconds, seed=seed, announce=announce
    )


def _agent(path: str, announce: Callable[[str], None]) -> Iterator[Finding] | None:
    """Return the findings about the agent whose config a path names; None if it names no config."""
    try:
        named: Any = load_object(path) if ":" in path else None
    except ConfigError:
        return None  # raised again when the environment is made
    if not is_agent_config(named):
        return None
    return examine_anywhere(named, announce)


def _agent_in(path: str, config: EnvConfig, announce: Callable[[str], None]) -> Iterator[Finding]:
    """Yield the findings about the agent of that path in the spaces of an environment."""
    announce("make")
    try:
        spec = config.build.describe().spec
        named: Any = load_object(path)
    except Exception as error:  # foreign code may raise anything
        yield findings.raised("make", error, _FIRST)
        return
    if is_agent_config(named):
        yield from examine_anywhere(named, announce, spaces={f"those of {config.id}": spec})
    else:
        seen = f"{path} is not an agent's config, but {named!r:.80}"
        yield fail("settings", seen, "Name the class whose `build` makes the agent.")


def _died(doing: str, ended: ActorExit) -> Finding:
    how, advice, _ = cause_of(ended)
    if ended.code == 0:
        how = "ended with exit code 0 before the checks were done"
    place = findings.place_in(ended.text)
    return fail(doing, f"the process of the environment or agent {how}{place}", advice)


def _hung(doing: str, quiet_s: float, ends: list[ActorExit]) -> Finding:
    place = findings.place_in("".join(ended.text for ended in ends))
    return fail(
        doing,
        f"no answer for {quiet_s:g} s{place}",
        "The environment hangs there: look for a wait without a timeout.",
    )
