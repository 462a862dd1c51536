"""Hosts of a run that join late, are killed, hang, flap, are cut off, or have no right to join.

They are processes of this machine; the one that is cut off is in a separate network, whose cable is
pulled. Actors of a lost host must be gone or ignored, nothing may be stored twice, and the run
must return to full strength on the next host that joins. A host without the right must be refused
in a sentence.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import psutil
import zmq

from asyncrl.core.errors import ConfigError, Refused
from asyncrl.core.messages import SOFTWARE
from asyncrl.fleet.config import HostsConfig
from asyncrl.run import join
from asyncrl.run.join import join_run
from asyncrl.run.run_config import RunConfig
from asyncrl.transport.zeromq import ZmqTransportConfig
from benchmarks.chaos.finding import Finding, Size, in_time, not_run
from benchmarks.chaos.partition import Link
from benchmarks.chaos.stage import AGENT, Stage, supervision
from benchmarks.chaos.worlds import Numbered

_TIMEOUT_S = 2.0
_GONE_S = 1.0
_PAUSE_S = 0.2
_CALM_S = 0.5
_DEADLINE_S = 120.0
_REFUSED = 3
"""Exit code of a host that is refused; the sentence is its last line."""

_HOST = "import sys; from benchmarks.chaos.hosts import serve; serve(*sys.argv[1:])"
_UNHEARD = "was not heard"

Host = subprocess.Popen[str]


def shared(bind: str) -> RunConfig:
    """Return the settings that a run and its hosts share."""
    return RunConfig(
        actors=2,
        launcher="hosts",
        supervision=supervision(),
        transport=ZmqTransportConfig(bind=bind),
        hosts=HostsConfig(min_actors=1, host_timeout_s=_TIMEOUT_S),
    )


def serve(key: str, incarnations: str, room: str, software: str) -> None:
    """Be a host, of another version if one is named."""
    world = Numbered(incarnations=Path(incarnations))
    try:
        with patch.object(join, "SOFTWARE", software or SOFTWARE):
            join_run(key, AGENT, world, shared("tcp://127.0.0.1"), actors=int(room))
    except (ConfigError, Refused) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(_REFUSED)


@dataclass(slots=True)
class Run:
    """A run in this process, and its hosts."""

    stage: Stage
    directory: Path
    hosts: list[Host] = field(default_factory=list)

    @property
    def key(self) -> Path:
        """The file that hosts join with."""
        return self.directory / "join.key"

    def join(
        self, room: int = 1, *, key: Path | None = None, software: str = "", by: Sequence[str] = ()
    ) -> Host:
        """Start a host."""
        words = [str(key or self.key), str(self.stage.incarnations.path), str(room), software]
        command = [*by, sys.executable, "-c", _HOST, *words]
        host = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603
        self.hosts.append(host)
        return host

    def until_living(self, actors: int) -> Iterator[None]:
        """Wait until this number of actors makes steps."""
        yield from self.stage.until(
            lambda: sum(one.alive for one in self.stage.incarnations.living()) == actors,
            _DEADLINE_S,
            f"{actors} actors",
        )

    def until_unheard(self, since: float) -> Iterator[None]:
        """Wait until the learner has given up a host."""
        yield from self.stage.until(
            lambda: self.stage.notices.since(since, _UNHEARD), _DEADLINE_S, "a host to be given up"
        )

    def until_refused(self, *hosts: Host) -> Iterator[None]:
        """Wait until hosts have ended."""
        yield from self.stage.until(
            lambda: all(host.poll() is not None for host in hosts), _DEADLINE_S, "refusals"
        )

    def close(self) -> None:
        """Wait until all hosts have ended with the run; kill those that have not."""
        for host in self.hosts:
            with suppress(subprocess.TimeoutExpired):
                host.wait(_DEADLINE_S)
            host.kill()
            host.wait()


@contextmanager
def run_over(bind: str, directory: Path) -> Iterator[Run]:
    """Yield a run whose actors are on hosts."""
    directory.mkdir()
    own = shared(bind)
    stage = Stage(
        directory,
        configure=lambda config: replace(
            config, launcher=own.launcher, transport=own.transport, hosts=own.hosts
        ),
    )
    run = Run(stage, directory)
    try:
        yield run
    finally:
        run.close()


@dataclass(slots=True)
class Faults:
    """A script: hosts join late, are killed, hang and flap."""

    run: Run
    wrong_key: Path
    flaps: int
    gone_s: float = 0.0
    known_s: float = 0.0
    back_s: list[float] = field(default_factory=list)
    intruders: dict[str, Host] = field(default_factory=dict)

    def __call__(self, stage: Stage) -> Iterator[None]:
        """Let one fault follow the other."""
        run = self.run
        first = run.join()
        yield from run.until_living(1)
        late = run.join()
        yield from run.until_living(2)
        self._write_wrong_key()
        self.intruders["with a wrong key"] = run.join(key=self.wrong_key)
        self.intruders["of another version"] = run.join(software="asyncrl 0.0.1")
        yield from run.until_refused(*self.intruders.values())
        yield from self._kill(first)
        yield from self._hang(late)
        for _ in range(self.flaps):
            yield from stage.until(self._at_work, _DEADLINE_S, "a host with an actor")
            yield from self._kill(self._at_work() or run.hosts[-1])
        yield from stage.for_s(_CALM_S)

    def _kill(self, host: Host) -> Iterator[None]:
        """Kill a host; its actors must end, and start again on another host."""
        actors = psutil.Process(host.pid).children(recursive=True)
        at = time.monotonic()
        host.kill()
        yield from self.run.stage.until(
            lambda: not any(is_running(one) for one in actors), _DEADLINE_S, "its actors to end"
        )
        self.gone_s = max(self.gone_s, time.monotonic() - at)
        self.run.join()
        yield from self.run.until_unheard(at)
        self.known_s = max(self.known_s, self._known_at(at) - at)
        yield from self.run.until_living(2)
        self.back_s.append(time.monotonic() - at)

    def _hang(self, host: Host) -> Iterator[None]:
        """Stop a host while its actor makes steps; when it is back, it must end that actor."""
        at = time.monotonic()
        old = psutil.Process(host.pid).children(recursive=True)
        host.send_signal(signal.SIGSTOP)
        self.run.join()
        yield from self.run.until_unheard(at)
        host.send_signal(signal.SIGCONT)
        yield from self.run.stage.until(
            lambda: not any(is_running(one) for one in old), _DEADLINE_S, "its old actor to end"
        )
        yield from self.run.until_living(2)

    def _at_work(self) -> Host | None:
        """Return a host that has an actor."""
        actors = {one.pid for one in self.run.stage.incarnations.living()}
        for host in self.run.hosts:
            with suppress(psutil.NoSuchProcess):
                its = psutil.Process(host.pid).children(recursive=True)
                if actors & {one.pid for one in its}:
                    return host
        return None

    def _known_at(self, since: float) -> float:
        return self.run.stage.notices.since(since, _UNHEARD)[0][0]

    def _write_wrong_key(self) -> None:
        public, secret = zmq.curve_keypair()
        write_key(self.wrong_key, self.run.key, public.decode(), secret.decode())


@dataclass(slots=True)
class CutOff:
    """A script: a host is in a network whose cable is pulled; one has the key of an ended run."""

    run: Run
    link: Link
    ended_key: Path
    known_s: float = 0.0
    pause_s: float = 0.0
    intruders: dict[str, Host] = field(default_factory=dict)

    def __call__(self, stage: Stage) -> Iterator[None]:
        """Pull the cable, let another host take over, and plug it in."""
        run, link = self.run, self.link
        run.join()
        yield from run.until_living(1)
        far = run.join(by=("ip", "netns", "exec", link.namespace))
        yield from run.until_living(2)
        old = json.loads(self.ended_key.read_text(encoding="utf-8"))
        stolen = self.ended_key.with_name("stolen.key")
        write_key(stolen, run.key, old["public"], old["secret"])
        self.intruders["with the key of a run that has ended"] = run.join(key=stolen)
        yield from run.until_refused(*self.intruders.values())
        at = time.monotonic()
        link.pull()
        run.join()
        yield from run.until_unheard(at)
        self.known_s = stage.notices.since(at, _UNHEARD)[0][0] - at
        name = f"{socket.gethostname()}/{far.pid}"
        link.plug()
        hosts = stage.trainer.source.hosts
        yield from stage.until(
            lambda: not hosts().get(name, {"lost": 1})["lost"], _DEADLINE_S, "it to join again"
        )
        yield from run.until_living(2)
        yield from stage.for_s(_CALM_S)
        self.pause_s = max(stage.gaps_s(at))


def write_key(path: Path, like: Path, public: str, secret: str) -> None:
    """Write a join key for the learner of another one, with other keys."""
    content = json.loads(like.read_text(encoding="utf-8"))
    path.touch(mode=0o600)
    path.write_text(json.dumps({**content, "public": public, "secret": secret}), encoding="utf-8")


def measure(size: Size, directory: Path) -> list[Finding]:
    """Do all that to two runs, and return the findings."""
    ended_key = directory / "ended.key"
    with run_over("tcp://127.0.0.1", directory / "faults") as run:
        script = Faults(run, directory / "wrong.key", 1 if size == "small" else 20)

        def keeps_key(stage: Stage) -> Iterator[None]:
            write_key(ended_key, run.key, *_pair(run.key))
            yield from script(stage)

        run.stage.play(keeps_key, join_key=run.key)
    found = [*_in_time(script), *_refusals(script.intruders)]
    found.append(run.stage.balance(26, "hosts that are killed, hang and flap", loses_reports=True))
    if reason := Link.reason_not():
        what, promised = "a host that is cut off", "the ledger balances"
        return [*found, not_run(26, what, promised, reason)]
    with Link() as link, run_over(f"tcp://{link.address}", directory / "cut") as run:
        cut = CutOff(run, link, ended_key)
        run.stage.play(cut, join_key=run.key)
    back = "a host that is cut off, and comes back"
    return [
        *found,
        _known("a host that is cut off", cut.known_s),
        in_time(26, f"{back}: longest pause between gradient steps", cut.pause_s, _PAUSE_S),
        *_refusals(cut.intruders),
        run.stage.balance(26, back, loses_reports=True),
    ]


def _pair(key: Path) -> tuple[str, str]:
    content = json.loads(key.read_text(encoding="utf-8"))
    return content["public"], content["secret"]


def is_running(process: psutil.Process) -> bool:
    """Whether a process is there, and is no zombie."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _in_time(script: Faults) -> Iterator[Finding]:
    back = ", ".join(f"{seconds:.1f}" for seconds in script.back_s)
    what, note = "a host that is killed: until its actors are gone", f"; all again after {back} s"
    yield in_time(26, what, script.gone_s, _GONE_S, note=note)
    yield _known("a host that is killed", script.known_s)


def _known(what: str, seconds: float) -> Finding:
    """Look at a time that must be within `hosts.host_timeout_s` + 1 s."""
    return in_time(26, f"{what}: until the learner knows", seconds, _TIMEOUT_S + 1)


def _refusals(intruders: dict[str, Host]) -> Iterator[Finding]:
    for what, host in intruders.items():
        assert host.stderr
        lines = [line for line in host.stderr.read().splitlines() if line]
        yield Finding(
            target=27,
            what=f"a host {what}",
            measured=f"exit code {host.returncode}: {lines[-1] if lines else 'no word'}",
            promised="refused in a sentence",
            passed=host.returncode == _REFUSED and bool(lines),
        )
