"""Ranks over a process group of torch: gloo on CPUs, NCCL between GPUs.

Sums of one machine on the CPU go through shared memory instead, see `shared_sums`.

    torchrun --nproc-per-node 2 -m asyncrl train ...      # or: asyncrl train --learners 2 ...

A rank that fails posts the cause in the group's store and closes its connections, so that the sums
of the others fail at once. A rank whose sum has failed posts that it still runs, and names those
that have posted nothing. Sends only tensors and short texts: torch's object collectives would
unpickle.
"""

from __future__ import annotations

import datetime
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from asyncrl.core.errors import ConfigError, RankFailed, describe_error
from asyncrl.core.interrupter import start_thread
from asyncrl.core.ranks import Place, RanksConfig, Values
from asyncrl.extensions.ranks.lockstep import STORE_FILE, process_state
from asyncrl.extensions.ranks.shared_sums import (
    LateRanks,
    SharedSums,
    connect,
    is_finite,
    named,
    not_finite,
)

logger = logging.getLogger(__name__)

_INTERFACE = "GLOO_SOCKET_IFNAME"
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_POSTED_S = 3.0
"""Seconds for other ranks to post that they still run, after a sum has failed."""

_STORE_S = 5.0
_POLL_S = 0.05
_PARENT_S = 0.5
_AFTER_PARENT_S = 4.0
"""Seconds for a last checkpoint after what started the ranks has died."""

_group: ProcessGroup | None = None


def joined(place: Place, config: RanksConfig) -> ProcessGroup:
    """Join the other ranks; wait for them until the timeout. A process joins once."""
    global _group  # noqa: PLW0603  # as torch has one default group in a process
    if _group is None:
        _end_with_parent()
        _group = ProcessGroup(place, config)
    return _group


class ProcessGroup:
    """All ranks of a run, and the causes of their failures."""

    _shared: SharedSums | None = None
    """Used instead of gloo, if all ranks are on one machine."""

    def __init__(self, place: Place, config: RanksConfig) -> None:
        """Wait until all ranks are there; raise `RankFailed` after the timeout."""
        self.rank, self.world = place.rank, place.world
        self.place = place
        self._timeout_s = config.timeout_s
        _choose_interface(place, config)
        try:
            self._store = self._open_store()
            self._store.set(f"process/{self.rank}", f"{os.getpid()} {socket.gethostname()}")
            with_gpus = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(
                with_gpus,
                store=PrefixStore("group", self._store),
                rank=self.rank,
                world_size=self.world,
                timeout=datetime.timedelta(seconds=config.timeout_s),
            )
        except (RuntimeError, ValueError) as error:
            raise RankFailed(self._why_not_met(str(error))) from error
        self._store.set_timeout(datetime.timedelta(seconds=_STORE_S))
        self._open = True
        if place.local_world == self.world:
            self._shared = connect(
                self.rank, self.world, self._timeout_s, exchange=self._texts, agree=self._agree
            )

    def sum(self, values: Values) -> Values:
        """Sum a tensor over all ranks, in place; raise `NonFiniteModel` if it becomes NaN."""
        assert isinstance(values, Tensor)  # noqa: S101  # as agents of torch have them
        checked = values.is_floating_point() and self._memory_for(values) is None
        was_finite = not checked or is_finite(values)
        self._reduce(values)
        if checked and not is_finite(values):
            flags = [0.0] * self.world
            flags[self.rank] = float(not was_finite)
            raise not_finite([rank for rank, bad in enumerate(self.exchange(flags)) if bad])
        return values

    def exchange(self, numbers: list[float]) -> list[float]:
        """Return the sums over all ranks."""
        values = torch.tensor(numbers, dtype=torch.float64)
        self._reduce(values)
        return values.tolist()

    def post(self, key: str, text: str) -> None:
        """Store a short text of this rank under a key, for the others to read, if they can."""
        with suppress(RuntimeError):  # the store has died with what holds it
            self._store.set(f"{key}/{self.rank}", text[:4000])

    def posted(self, key: str) -> dict[int, str]:
        """Return the texts that ranks have posted under a key so far, by rank."""
        with suppress(RuntimeError):
            return self._read(key)
        return {}

    def _read(self, key: str) -> dict[int, str]:
        keys = {rank: f"{key}/{rank}" for rank in range(self.world)}
        there = {rank: name for rank, name in keys.items() if self._store.check([name])}
        return {rank: self._store.get(name).decode() for rank, name in there.items()}

    def wait_posted(self, key: str, rank: int, more_s: float = 0.0) -> str:
        """Wait until a rank has posted a text under a key, and return it.

        The timeout is that of a step, and some more.
        """
        timeout_s = self._timeout_s + more_s
        deadline = time.monotonic() + timeout_s
        while rank not in (posted := self.posted(key)):
            if failed := self.posted("failed"):
                raise RankFailed(_causes(failed))
            if (how := self._why_gone(rank)) and rank not in self.posted(key):
                raise RankFailed(f"rank {rank} {how}; it has posted no {key}")
            if time.monotonic() >= deadline:
                raise RankFailed(
                    f"rank {rank} has posted no {key} within {timeout_s:g} s; see its output"
                )
            time.sleep(_POLL_S)
        return posted[rank]

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the group; with an error, the other ranks fail, too, and name it."""
        if not self._open:
            return
        if error is not None and not isinstance(error, RankFailed):
            self.post("failed", describe_error(error))
        self.post("left", "yes")
        self._part()

    def _why_gone(self, rank: int) -> str:
        """Return how a rank has ended, or "" if it may still post something."""
        if rank in self.posted("left"):
            return "has left"
        how = _state_of(self.posted("process").get(rank, ""))
        return how if how.startswith("ended") else ""

    def _part(self) -> None:
        """Close all connections, so that those who wait for this rank notice."""
        self._open = False
        if self._shared is not None:
            self._shared.close()
        dist.destroy_process_group()

    def _open_store(self) -> Store:
        wait = datetime.timedelta(seconds=self._timeout_s)
        path = os.environ.get(STORE_FILE)
        url = f"file://{path}?rank={self.rank}&world_size={self.world}" if path else "env://"
        store, _, _ = next(rendezvous(url, timeout=wait))
        store.set_timeout(wait)
        # After all of torchrun's restarts together it is another run.
        return PrefixStore(f"asyncrl/{self.place.restarts}", store)

    def _why_not_met(self, why: str) -> str:
        there: dict[int, str] = {}
        with suppress(AttributeError):  # the store could not be opened
            there = self.posted("process")
        missing = [rank for rank in range(self.world) if rank not in there]
        who = f"{named(missing)} did not come" if there and missing else "the ranks did not meet"
        several = self.place.local_world < self.world
        hint = (
            f"; on several machines set {_INTERFACE} to the network interface of each, and see "
            "that no firewall is between them"
        )
        why = " ".join(why.split())
        return (
            f"{who} within {self._timeout_s:g} s (ranks.timeout_s): {why:.200}"
            f"{hint if several else ''}"
        )

    def _texts(self, text: str) -> dict[int, str]:
        self.post("memory", text)
        return {rank: self.wait_posted("memory", rank) for rank in range(self.world)}

    def _agree(self, yes: bool) -> bool:
        return self.exchange([float(yes)])[0] == self.world

    def _memory_for(self, values: Tensor) -> SharedSums | None:
        return self._shared if values.device.type == "cpu" else None

    def _reduce(self, values: Tensor) -> None:
        if not self._open:
            raise RankFailed("this rank has left the group")
        late: bool | None = None
        suspects: Sequence[int] = range(self.world)
        shared = self._memory_for(values)
        try:
            if shared is None:
                dist.all_reduce(values)
            else:
                shared.sum(values)
        except (RuntimeError, OSError) as error:
            late = isinstance(error, TimeoutError) or "Timed out" in str(error)
            suspects = error.ranks if isinstance(error, LateRanks) else suspects
        # The exception must be gone here: its frames hold the connections that `_lost` closes.
        if late is not None:
            raise RankFailed(self._lost(suspects, late=late))

    def _lost(self, suspects: Sequence[int], *, late: bool) -> str:
        """Return who is missing and why, after a sum has failed: some of the suspects."""
        self.post("runs", "yes")
        self._part()
        try:
            return self._causes_or_silent(suspects, late=late)
        except RuntimeError:
            holder = "rank 0, or what started the ranks,"
            return f"another rank is gone, and so is the store of the group: {holder} has died"

    def _causes_or_silent(self, suspects: Sequence[int], *, late: bool) -> str:
        deadline = time.monotonic() + _POSTED_S
        while True:
            failed, runs = self._read("failed"), self._read("runs")
            silent = [r for r in suspects if r not in failed and r not in runs]
            if failed:
                return _causes(failed)
            if not silent or time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)
        if not silent:
            return "the connection between the ranks was lost, although all of them still run"
        processes = self.posted("process")
        states = {r: _state_of(processes.get(r, "")) for r in silent}
        worst = [r for r in silent if states[r]] or silent
        how = next((states[r] for r in worst if states[r]), "")
        if not how:
            limit = f" within {self._timeout_s:g} s (ranks.timeout_s)"
            how = f"did not take part in a step{limit if late else ', and its connection is gone'}"
        where = ", ".join(
            f"process {processes[r].replace(' ', ' on ')}" for r in worst if r in processes
        )
        return f"{named(worst)} {how}; {where}"


def _causes(failed: dict[int, str]) -> str:
    return "; ".join(f"rank {rank} failed: {text}" for rank, text in failed.items())


def _state_of(process: str) -> str:
    """Describe the state of a process of this machine; "" if it runs, or is elsewhere."""
    pid, _, host = process.partition(" ")
    if not pid or host != socket.gethostname() or not Path("/proc/self/stat").exists():
        return ""
    match process_state(int(pid)):
        case "" | "Z" | "X":
            return "ended without an error, as after SIGKILL"
        case "T" | "t":
            return "is stopped, as by SIGSTOP, and took no part in a step"
        case _:
            return ""


def _choose_interface(place: Place, config: RanksConfig) -> None:
    """Keep ranks of one machine to its loopback; refuse several machines without the switch."""
    address = os.environ.get("MASTER_ADDR", "localhost")
    if place.local_world == place.world and (STORE_FILE in os.environ or address in _LOOPBACK):
        os.environ.setdefault(_INTERFACE, "lo")
    elif not config.several_machines:
        elsewhere = place.world - place.local_world
        where = f"MASTER_ADDR is {address!r}"
        if elsewhere:
            where = f"{elsewhere} of {place.world} learners are on other machines"
        raise ConfigError(
            f"{where}, but learners keep to one machine unless ranks.several_machines is set: "
            "gradients and counters are sent unencrypted, and anyone with access to the ports can "
            f"change them. Set it in a trusted network only, and {_INTERFACE} to its interface"
        )


def _end_with_parent(
    end: Callable[[], object] = lambda: os.kill(os.getpid(), signal.SIGTERM),
) -> None:
    """End this process some seconds after its parent, torchrun for instance, has died.

    A launcher that is killed cannot end its ranks, which lead separate sessions.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_S)
        logger.error("the launcher of the learners has died; this one saves a checkpoint and ends")
        end()
        time.sleep(_AFTER_PARENT_S)
        os._exit(1)

    start_thread(threading.Thread(target=watch, name="asyncrl-parent", daemon=True))
