"""The 30 numbers that asyncrl promises about faults and unauthorised peers."""

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
    ("detection of a dead actor", "p99 <= 50 ms"),
    (
        "from kill -9 of an actor to the first new transition of its slot",
        "median <= 0.5 s, p99 <= 1.5 s; <= 3 s with spawn",
    ),
    (
        "an environment hangs, asleep or holding the interpreter's lock",
        "found <= its deadline + 1 s, replaced <= 2 s later, its stack reported in all cases",
    ),
    ("longest pause between gradient steps while an actor is down", "<= 200 ms"),
    (
        "cost of a kill, 1,000 times",
        "<= 8 batches lost, no acknowledged one, none twice; the ledger balances every time",
    ),
    (
        "1,000 kills in 10 minutes",
        "no hang, all slots back <= 2 s after the last, >= 60 % of the calm throughput",
    ),
    (
        "processes left by kill -9 of a learner with stuck actors and grandchildren, 200 times",
        "0 within 0.5 s; with the helper process killed first, no actor within 2 s",
    ),
    (
        "left over in /dev/shm and the temporary directory after any kill, 100 times",
        "0 files, sockets and semaphores, at the latest after the next start",
    ),
    (
        "Ctrl-C, with 100 MB of state",
        "exit 130 with a checkpoint, p95 <= 2 s; the second <= 0.5 s; no traceback of a child",
    ),
    (
        "SIGTERM, with 100 MB of state",
        "checkpoint and exit 143 <= 5 s; never longer than the grace period in 100 runs",
    ),
    (
        "a save is interrupted at any system call: >= 300 kills, >= 300 disk errors",
        "the newest checkpoint always loads",
    ),
    (
        "10,000 damaged checkpoints",
        "all rejected before an array is built; fallback <= 2 s with 100 MB",
    ),
    (
        "a run resumes after 20 kills at random steps",
        "synchronous: the same bits; asynchronous: counters, ledger and schedules continue",
    ),
    (
        "a checkpoint of 100 MB pauses the learner",
        "<= 50 ms; receiving experience pauses 0 ms",
    ),
    (
        "10 million hostile messages to the decoder",
        "only WireError; <= 50 ms each; memory <= 8 x the message",
    ),
    (
        "50,000 hostile connections to the socket",
        "the learner keeps running; memory <= +5 MB; >= 80 % of the normal throughput",
    ),
    (
        "code executed from hostile bytes: >= 20 canaries in all fields of messages and loaders",
        "0",
    ),
    (
        "10,000 messages from peers without the right credentials, of 8 kinds",
        "0 delivered",
    ),
    (
        "what a default run exposes: sockets, readable files, secrets in argv, environment, logs",
        "0",
    ),
    ("100,000 messages from an earlier incarnation", "0 stored"),
    (
        "the learner pauses for 60 s",
        "memory <= each actor's window + 10 MB, nothing dropped, flow resumes <= 0.5 s later",
    ),
    (
        "the network is cut for 30 s",
        "flow resumes <= 3 s later, the ledger balances, no needless restart; "
        "a half-open peer is found <= 3 heartbeats",
    ),
    (
        "age of the acting model, with 30 % of the broadcasts lost",
        "no action without a model; 99.9 % <= 2 versions old; a breached limit is reported <= 1 s",
    ),
    (
        "2 hours with a fault every 30 s",
        "memory <= 1 MB/h, descriptors and threads +-0, throughput +-3 %, log <= 1 MB/h",
    ),
    (
        "the tests",
        "every row of the fault model has a test; 50 runs without a flaky failure, each <= 15 min",
    ),
    (
        "a host is killed, hangs, is cut off, joins late or again and again",
        "its actors are gone <= 1 s after its end; the learner knows <= the timeout + 1 s, and "
        "pauses <= 0.2 s for one that is cut off while another has actors; the ledger "
        "balances, nothing is stored twice",
    ),
    (
        "a host joins with a wrong or stolen key, or of another version",
        "refused in a sentence",
    ),
    (
        "one of several learners is killed, frozen, slow, differs or fails; what started them is "
        "killed",
        "named, a frozen one <= the timeout + 5 s; the others save and end; ranks end <= 5 s after "
        "torchrun; a slow one ends nothing",
    ),
    (
        "learners are restarted by torchrun, or resumed with another number of them",
        "steps, counters and replay continue",
    ),
    (
        "on Ray, an actor or a host is killed, a node or the cluster is lost",
        "an actor is known <= 0.2 s; the actors of a host are gone <= 1 s, known <= 1 s; all "
        "actors again <= 15 s, on another node if theirs is lost; without its head the run saves "
        "and ends",
    ),
)

TARGETS: Mapping[int, Target] = MappingProxyType(
    {number: Target(*row) for number, row in enumerate(_ROWS, start=1)}
)
