"""What went wrong in a run and was borne: short phrases, for people. Draws nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from asyncrl.recorders._numbers import count

_Rows = Mapping[str, Mapping[str, float]]

_MOST_SLOTS = 6
_MESSAGES = {
    "malformed": "malformed",
    "refused": "refused",
    "impostor": "in another's name",
    "foreign_run": "of another run",
    "foreign_protocol": "of another version",
    "unknown": "from unknown peers",
    "stale": "of earlier lives",
    "undelivered": "not delivered",
    "after_gap": "sent again",
    "duplicate": "that came twice",
}
"""Reasons in words; those of `link/` metrics that count connections are left out."""

_CONNECTIONS = {"handshake_failed": "refused", "flood": "too many"}


def fault_phrases(values: Mapping[str, float], actors: _Rows) -> list[str]:
    """Return what went wrong so far, the worst first; nothing if nothing did.

    What was lost by it, the ledger tells.

    Args:
        values: The newest metrics of the run.
        actors: The newest ones of each actor, by slot.
    """
    phrases = [*_of_actors(actors)]
    if failures := values.get("checkpoint/failures"):
        phrases.append(_several(failures, "checkpoint", "not written"))
    for thing, reasons in (("message", _MESSAGES), ("connection", _CONNECTIONS)):
        for reason, words in reasons.items():
            if number := values.get(f"link/{reason}"):
                phrases.append(_several(number, thing, words))
    return phrases


def _of_actors(actors: _Rows) -> Iterator[str]:
    for metric, thing, words in (
        ("dropped", "actor", "dropped"),
        ("restarts", "restart", ""),
        ("env_restarts", "renewal", "of environments"),
    ):
        found = {slot: row[metric] for slot, row in actors.items() if row.get(metric)}
        if found:
            yield f"{_several(sum(found.values()), thing, words)} ({_slots([*found])})"


def _slots(slots: list[str]) -> str:
    if len(slots) > _MOST_SLOTS:
        return f"{len(slots)} actors"
    return f"actor{'s' if len(slots) > 1 else ''} {', '.join(slots)}"


def _several(number: float, thing: str, words: str) -> str:
    return f"{count(number)} {thing}{'' if number == 1 else 's'} {words}".rstrip()
