"""The 25 numbers that asyncrl promises about faults and about strangers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Target:
    """What may happen, and what is promised then."""

    what: str
    promised: str


_ROWS = (
    ("a dead actor is noticed", "p99 <= 50 ms"),
    (
        "kill -9 of an actor to the first new transition from its slot",
        "median <= 0.5 s, p99 <= 1.5 s; <= 3 s with spawn",
    ),
    (
        "an environment hangs, asleep or holding the interpreter's lock",
        "found <= its deadline + 1 s, replaced <= 2 s later, its stack told in all cases",
    ),
    ("longest pause between gradient steps while an actor is down", "<= 200 ms"),
    (
        "what a kill costs, 1,000 times",
        "<= 8 batches lost, no acknowledged one, none twice; the ledger adds up every time",
    ),
    (
        "1,000 kills in 10 minutes",
        "no hang, all slots back <= 2 s after the last, >= 60 % of the calm throughput",
    ),
    (
        "processes left by kill -9 of a learner with stuck actors and grandchildren, 200 times",
        "0 within 0.5 s; with the reaper killed first, no actor within 2 s",
    ),
    (
        "left in /dev/shm and the temporary directory after any kill, 100 times",
        "0 files, sockets and semaphores, at the next start at the latest",
    ),
    (
        "Ctrl-C, with 100 MB of state",
        "exit 130 with a checkpoint, p95 <= 2 s; the second <= 0.5 s; no traceback of a child",
    ),
    (
        "SIGTERM, with 100 MB of state",
        "checkpoint and exit 143 <= 5 s; the grace never overrun in 100 of 100",
    ),
    (
        "a save ends at any system call: >= 300 kills, >= 300 refusals of the disk",
        "the newest checkpoint loads in all",
    ),
    (
        "10,000 damaged checkpoints",
        "all refused before an array exists; falls back <= 2 s with 100 MB",
    ),
    (
        "a run goes on after 20 kills at random steps",
        "synchronous: the same bits; asynchronous: counters, ledger and schedules continue",
    ),
    (
        "a checkpoint of 100 MB pauses the learner",
        "<= 50 ms, the receiving of experience 0 ms",
    ),
    (
        "10 million hostile messages for the decoder",
        "nothing but its own error; <= 50 ms each; <= 8 x the message in memory",
    ),
    (
        "50,000 hostile connections to the socket",
        "the learner lives; <= 5 MB more memory; >= 80 % of the honest throughput",
    ),
    (
        "code run from hostile bytes: >= 20 canaries in every field of all messages and loaders",
        "0",
    ),
    (
        "10,000 messages from peers without the right credentials, of 8 kinds",
        "0 delivered",
    ),
    (
        "what a default run shows: sockets, wide files, secrets in argv, environment, logs",
        "0",
    ),
    ("100,000 messages from a life that is over", "0 stored"),
    (
        "the learner pauses for 60 s",
        "memory <= the window of each actor + 10 MB, nothing dropped, flows on <= 0.5 s later",
    ),
    (
        "the network is cut for 30 s",
        "flows on <= 3 s later, the ledger adds up, no needless restart; "
        "a half-open peer is found <= 3 heartbeats",
    ),
    (
        "the age of the model that acts, with 30 % of the broadcasts lost",
        "none acts without one; 99.9 % <= 2 versions old; a breached limit is raised <= 1 s",
    ),
    (
        "2 hours with a fault every 30 s",
        "memory <= 1 MB/h, descriptors and threads +-0, throughput +-3 %, log <= 1 MB/h",
    ),
    (
        "the tests themselves",
        "every row of the fault model has one; 50 runs without a flake, each <= 15 min",
    ),
)

TARGETS: Mapping[int, Target] = MappingProxyType(
    {number: Target(*row) for number, row in enumerate(_ROWS, start=1)}
)
