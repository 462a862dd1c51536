"""What a learner and its hosts say to each other: JSON, which is checked and never run.

Any message may be lost, or arrive twice. So each side numbers what must arrive, its items, and
repeats them until the other side has acknowledged them. Does not know how bytes are sent.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any

from asyncrl.core.errors import WireError
from asyncrl.core.launcher import ActorExit, ProgressReport
from asyncrl.core.messages import Peer
from asyncrl.core.types import ActorId
from asyncrl.fleet.local_output import CONTROLS

Plain = Mapping[str, Any]

_MOST = 2**53
_MOST_BYTES = 1 << 20
_MOST_TEXT = 32 << 10
"""Of an exit; escaped it may take six times as many bytes, and there are two."""

_MOST_ITEMS = 64
_MOST_ITEM_BYTES = 1 << 18
"""Of all items of a message, unless the first one is larger; the rest is left for heartbeats."""


class Conversation:
    """One side's items: in order, each once, however many messages are lost."""

    def __init__(self) -> None:
        self._number = 0
        self._said: deque[tuple[int, Plain, int]] = deque()
        """Number, content and size of each item that may not have arrived."""
        self._heard = 0
        self._unsaid = False

    @property
    def has_news(self) -> bool:
        """Whether there are items that no message has contained yet."""
        return self._unsaid

    @property
    def is_acknowledged(self) -> bool:
        """Whether the other side has everything."""
        return not self._said

    def say(self, **item: Any) -> None:  # noqa: ANN401  # whatever JSON can represent
        """Add an item, which must arrive."""
        self._number += 1
        self._said.append((self._number, item, len(encode(item))))
        self._unsaid = True

    def message(self, **more: Any) -> bytes:  # noqa: ANN401
        """Return the next message: the items that may not have arrived, and what may be lost."""
        items: list[Any] = []
        size = 0
        for number, item, size_bytes in islice(self._said, _MOST_ITEMS):
            size += size_bytes
            if items and size > _MOST_ITEM_BYTES:
                break
            items.append([number, item])
        self._unsaid = len(self._said) > len(items)
        return encode({"heard": self._heard, "items": items, **more})

    def take(self, message: Plain) -> list[Plain]:
        """Return the new items of a message."""
        match message:
            case {"heard": int(heard), "items": list(items)}:
                while self._said and self._said[0][0] <= heard:
                    self._said.popleft()
            case _:
                raise WireError("a message of a host or its learner lacks `heard` or `items`")
        new: list[Plain] = []
        for item in items:
            match item:
                case [int(number), dict(content)] if number == self._heard + 1:
                    self._heard = number
                    new.append(content)
        return new


def encode(message: Plain) -> bytes:
    """Return the bytes of a message. A question mark replaces what UTF-8 cannot encode.

    A traceback can contain such characters: undecodable bytes of a file name, for example.
    """
    return json.dumps(message, ensure_ascii=False).encode(errors="replace")


def decode(data: bytes) -> Plain:
    """Return a message; raise `WireError` if the bytes are none."""
    if len(data) > _MOST_BYTES:
        raise WireError(f"a message of {len(data)} bytes, more than {_MOST_BYTES}")
    try:
        message = json.loads(data.decode())
        json.dumps(message, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise WireError(
            "a message with a text that UTF-8 cannot encode, so that it can be neither logged nor "
            f"shown: {error.object[error.start : error.end]!r:.80}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise WireError(f"a message that is not JSON: {error!r:.200}") from error
    if not isinstance(message, dict):
        raise WireError(f"a message that is not an object but {type(message).__name__}")
    return message


def plain_peer(peer: Peer) -> list[int]:
    """Return an incarnation as JSON."""
    return [int(peer.actor_id), int(peer.incarnation)]


def peer_of(plain: object) -> Peer:
    """Return the incarnation that `plain_peer` was made of."""
    match plain:
        case [int(actor_id), int(incarnation)]:
            if 0 <= actor_id < _MOST and 0 <= incarnation < _MOST:
                return Peer(actor_id=ActorId(actor_id), incarnation=incarnation)
    raise WireError(f"an incarnation must be two counts, got {plain!r:.80}")


def plain_report(report: ProgressReport) -> list[int]:
    """Return heartbeats as JSON."""
    return [report.turns, report.produced, int(report.waiting), report.waits]


def report_of(plain: object) -> ProgressReport:
    """Return the heartbeats that `plain_report` was made of."""
    match plain:
        case [int(turns), int(produced), int(waiting), int(waits)]:
            if all(0 <= count < _MOST for count in (turns, produced, waits)):
                return ProgressReport(turns, produced, waiting=bool(waiting), waits=waits)
    raise WireError(f"heartbeats must be four counts, got {plain!r:.80}")


def plain_actor(peer: Peer, report: ProgressReport, memory_bytes: int, pid: int) -> list[Any]:
    """Return what a host knows of a running actor as JSON."""
    return [plain_peer(peer), plain_report(report), memory_bytes, pid]


def actor_of(plain: object) -> tuple[Peer, ProgressReport, int, int]:
    """Return what `plain_actor` was given."""
    match plain:
        case [peer, report, int(memory_bytes), int(pid)]:
            if 0 <= memory_bytes < _MOST and 0 <= pid < _MOST:
                return peer_of(peer), report_of(report), memory_bytes, pid
    raise WireError(f"a report that cannot be read: {plain!r:.80}")


def plain_exit(ended: ActorExit) -> dict[str, Any]:
    """Return an exit as JSON; of a long text, its end."""
    return {
        "ended": plain_peer(ended.peer),
        "code": ended.code,
        "text": ended.text[-_MOST_TEXT:],
        "error": ended.error[:_MOST_TEXT],
        "began": ended.began,
        "last": plain_report(ended.last),
        "peak": ended.peak_bytes,
    }


def exit_of(plain: Plain) -> ActorExit:
    """Return the exit that `plain_exit` was made of."""
    match plain:
        case {
            "ended": peer,
            "code": int(code),
            "text": str(text),
            "error": str(error),
            "began": bool(began),
            "last": last,
            "peak": int(peak),
        } if -256 < code < 256 and 0 <= peak < _MOST:
            return ActorExit(
                peer=peer_of(peer),
                code=code,
                text=CONTROLS.sub("", text[-_MOST_TEXT:]),
                error=CONTROLS.sub("", error[:_MOST_TEXT]),
                began=began,
                last=report_of(last),
                peak_bytes=peak,
            )
    raise WireError(f"an exit that cannot be read: {plain!r:.200}")
