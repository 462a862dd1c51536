"""Who speaks nonsense to a run over its encrypted port, with its key or without (targets 16, 31).

Two honest actors work at a steady rate, on a host that has joined. Another process is all others:
strangers with noise, hostile messages and canaries, hosts with the joining key, and the actors that
the learner gives them. These are real ones, of whose messages some are changed, drawn from a seed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from asyncrl.core.env import EnvDescription
from asyncrl.core.errors import AsyncRLError, TransportError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import Experience
from asyncrl.fleet import host
from asyncrl.fleet.config import HostsConfig
from asyncrl.fleet.host import HostTimeouts
from asyncrl.fleet.threads import ThreadLauncher
from asyncrl.learner.observer import Observer
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.join import HostPlan, facts_of, join_run
from asyncrl.run.join_key import JoinKey
from asyncrl.run.plan import RunPlan
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.transport.wire import Frame
from asyncrl.transport.zeromq_actor import ZmqActorLink
from asyncrl.transport.zeromq_hosts import ZmqHostLine
from benchmarks.chaos import hosts
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.stage import DEADLINE_S, Stage
from benchmarks.chaos.worlds import Numbered
from tests.support.attack import attack
from tests.support.canaries import canaries
from tests.support.fakes import ConstantConfig
from tests.support.hostile_messages import MESSAGES, hostile, nonsense
from tests.support.sample_messages import make_peer

_SECONDS: dict[Size, int] = {"small": 2, "full": 600}
_HONEST = make_peer(0), make_peer(1)
"""They begin before the others; nothing that these do may end them."""

_GROWTH_BYTES = 20_000_000
_MOST_LINES_PER_S = 30
_PACE_S = 0.01
_HOSTS = 6
_LONGEST_S, _TURN_S = 2.0, 0.005
_RUDE_HOST, _RUDE_ACTOR, _VANISHES = 0.1, 0.05, 0.003
"""Probabilities for each message."""

_IMPATIENT = HostTimeouts(first_answer_s=_LONGEST_S, learner_s=_LONGEST_S, stop_s=0.1)

_OTHERS = "import sys; from benchmarks.chaos.nonsense import Others; Others(*sys.argv[1:]).speak()"


class Others:
    """All but the honest: hosts in threads, with actors in threads, and strangers."""

    def __init__(self, key_file: str, seconds: str, mark: str) -> None:
        """A canary that is run leaves a mark."""
        os.nice(5)
        self._key, self._chance = JoinKey.load(Path(key_file)), random.Random(1)  # noqa: S311
        self._end = time.monotonic() + float(seconds)
        self._birds = [bird.data for bird in canaries(Path(mark))]
        self._counts = Counter[str]()
        config, world = shared(), Numbered(Path(f"{key_file}.others"), pace_s=_PACE_S)
        plan = RunPlan(config, world, seen=EnvDescription(world().spec, world.n_envs))
        facts = facts_of(config, None, plan.schema.hash())
        self._plan = replace(HostPlan.of_run(self._key, plan, facts), timeouts=_IMPATIENT)

    def speak(self) -> None:
        """Speak until the time is over; print how much was said."""
        self._change_what_is_sent()
        threads = [threading.Thread(target=self._be_hosts) for _ in range(_HOSTS)]
        for thread in threads:
            thread.start()
        name, _, port = self._key.address.removeprefix("tcp://").rpartition(":")
        while time.monotonic() < self._end:
            time.sleep(_TURN_S)
            self._counts["strangers"] += 1
            with suppress(ConnectionError):
                attack((name, int(port)), self._chance, self._birds)
        for thread in threads:
            thread.join()
        sys.stdout.write(json.dumps(self._counts))

    def _change_what_is_sent(self) -> None:
        put, send = ZmqActorLink._put, ZmqHostLine.send  # noqa: SLF001
        known = deque[list[bytes]](maxlen=len(MESSAGES))
        host._TURN_S = host._REPORT_S = _TURN_S  # noqa: SLF001

        def put_broken(link: ZmqActorLink, frames: Sequence[Frame]) -> bool:
            if self._draws(_RUDE_ACTOR):
                known.append([bytes(frame) for frame in frames])
                frames = hostile(self._chance, [*known, *MESSAGES], self._birds)
            return put(link, frames)

        def send_nonsense(line: ZmqHostLine, data: bytes) -> None:
            if self._chance.random() < _VANISHES:
                raise TransportError("it vanishes")
            send(line, nonsense(self._chance, data) if self._draws(_RUDE_HOST) else data)

        ZmqActorLink._put = put_broken  # type: ignore[assignment,method-assign]  # noqa: SLF001
        ZmqHostLine.send = send_nonsense  # type: ignore[assignment,method-assign]

    def _draws(self, share: float) -> bool:
        """Whether to change the next message."""
        changes = self._chance.random() < share
        self._counts.update(messages=1, changed=changes)
        return changes

    def _be_hosts(self) -> None:
        """Be one host after the other; some leave, some vanish, most are refused."""
        while (left_s := self._end - time.monotonic()) > 0:
            self._counts["hosts"] += 1
            ends = Interrupter()
            timer = threading.Timer(min(left_s, _LONGEST_S), ends.stop, ["it is tired"])
            timer.start()
            with ThreadLauncher() as launcher, suppress(AsyncRLError):
                self._plan.serve(
                    launcher, ends, room=self._chance.choice((1, 2, 9)), on_welcome=lambda: None
                )
            timer.cancel()


def shared() -> RunConfig:
    """Return the settings of the run, which its hosts share."""
    return replace(
        hosts.shared("tcp://127.0.0.1"),
        agent=ConstantConfig(),
        actors=4,
        evaluate=EvaluationConfig(where="off"),
        replay=UniformReplayConfig(capacity=2000),
        hosts=HostsConfig(min_actors=len(_HONEST), host_timeout_s=5.0),
    )


@dataclass(slots=True)
class _Script(Observer):
    """Counts what is stored while the others speak."""

    size: Size
    directory: Path
    stored: Counter[Any] = field(default_factory=Counter)
    """Transitions, by sender."""

    said: dict[str, int] = field(default_factory=dict)
    held_bytes: list[int] = field(default_factory=list)

    @property
    def honest(self) -> int:
        return sum(self.stored[peer] for peer in _HONEST)

    def message(self, message: Experience) -> None:
        self.stored[message.peer] += message.transitions

    def __call__(self, stage: Stage) -> Iterator[None]:
        stage.keeps_times = False
        run = self.directory / "join.key", shared().agent, stage.world, shared()
        threading.Thread(target=join_run, args=run, kwargs={"actors": len(_HONEST)}).start()
        begun = lambda: all(self.stored[peer] for peer in _HONEST)  # noqa: E731
        yield from stage.until(begun, DEADLINE_S, "the honest actors")
        key, mark = (str(self.directory / name) for name in ("join.key", "mark"))
        command = [sys.executable, "-c", _OTHERS, key, str(_SECONDS[self.size]), mark]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as others:  # noqa: S603
            while others.poll() is None:
                self.held_bytes.append(psutil.Process().memory_info().rss)
                yield
            assert others.stdout is not None
            self.said = json.loads(others.stdout.read())


def measure(size: Size, directory: Path) -> list[Finding]:
    """Run with honest actors and all others."""
    script, world = _Script(size, directory), Numbered(pace_s=_PACE_S)
    stage = Stage(directory, world=world, configure=lambda _: shared())
    key = directory / "join.key"
    stage.play(script, shared().agent, join_key=key, observers=[lambda _: script])
    return [_finding(script, stage)]


def _finding(script: _Script, stage: Stage) -> Finding:
    ledger, said, stored = stage.result.ledger, script.said, script.stored.total()
    made = sum(one.steps for one in stage.incarnations.all()) * stage.world.n_envs
    sums = ledger["stored"] + ledger["dropped"] + ledger["lost"]
    log = [text for _, text in stage.notices.messages]
    growth_bytes = max(script.held_bytes) - script.held_bytes[len(script.held_bytes) // 4]
    return Finding(
        target=31,
        what="nonsense with a key and without",
        measured=f"{said['messages']:,} messages of {said['hosts']:,} hosts and their actors, "
        f"{said['changed']:,} changed; {said['strangers']:,} strangers; {script.honest:,} of "
        f"{made:,} honest transitions stored; memory {growth_bytes / 1e6:+.1f} MB; {len(log):,} "
        "lines in the log",
        promised="all that honest actors make is stored, the ledger balances, nothing is run, "
        f"memory <= +{_GROWTH_BYTES / 1e6:g} MB, <= {_MOST_LINES_PER_S} lines per second",
        passed=(ledger["produced"], ledger["in_flight"]) == (sums, 0)
        and (ledger["stored"], made) == (stored, script.honest)
        and growth_bytes <= _GROWTH_BYTES
        and not (script.directory / "mark").exists()
        and "Traceback" not in "".join(text for text in log if not text.startswith("actor"))
        and len(log) <= _MOST_LINES_PER_S * (_SECONDS[script.size] + 10),
        numbers={**ledger, **said, "made": made, "lines": len(log), "growth": growth_bytes},
    )
