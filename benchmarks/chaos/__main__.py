"""What happens when things break? Injects faults and prints numbers beside what is promised.

Continues after an interruption: an entry that was measured at this size, with this code, is shown
and not run again.

    python -m benchmarks.chaos --list
    python -m benchmarks.chaos --only kill_storm --size full
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.chaos.entries import ENTRIES, Entry
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.one_entry import run_apart
from benchmarks.chaos.table import findings_of, write_table
from benchmarks.common import PAGE, RESULTS, make_parser, note, provenance, write_json


def end_on_sigterm() -> None:
    """Let SIGTERM end, as Ctrl-C does, the entry that runs with all that it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.set_defaults(results=RESULTS / "chaos")
    names = list(ENTRIES)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--without", nargs="+", choices=names, default=[], metavar="NAME")
    parser.add_argument("--size", choices=["small", "full"], default="small")
    parser.add_argument("--again", action="store_true", help="measure what was measured, too")
    parser.add_argument("--strict", action="store_true", help="timed misses fail, too")
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--table", action="store_true", help="write all results into the README")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one entry after another; return 1 if a promise was broken."""
    args = _parse(arguments)
    if args.list:
        for name, entry in ENTRIES.items():
            print(f"{name:20} {entry.sentence} ({entry.small_s:,.0f} s, {entry.full_s:,.0f} s)")
        return 0
    if args.table:
        write_table(args.results, PAGE)
        return 0
    found: list[Finding] = []
    for name in args.only:
        if name not in args.without:
            found += _findings(name, args.size, args.results, again=args.again)
    skipped = sum(not finding.ran for finding in found)
    kept = sum(finding.passed for finding in found)
    print(f"{kept} of {len(found)} kept, {skipped} could not run here")
    for finding in found:
        if finding.verdict in {"broken", "missed"}:  # again: often only the last lines are shown
            _show(finding)
    failing = {"broken", "missed"} if args.strict else {"broken"}
    return int(any(finding.verdict in failing for finding in found))


def _findings(name: str, size: Size, results: Path, *, again: bool) -> list[Finding]:
    """Return what an entry found, now or before, and print it."""
    path = results / f"{name}_{size}.json"
    entry = ENTRIES[name]
    code = entry.code()
    stored: dict[str, Any] = {}
    if path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
    if again or stored.get("code") != code or not stored.get("ended_well"):
        stored = _measured(name, entry, size) | {"code": code}
        write_json(path, stored)
    found = findings_of(stored)
    print(f"{name}, {size}, {stored['date']}, {stored['commit']}, {stored['seconds']:.0f} s")
    for finding in found:
        _show(finding)
    return found


def _show(finding: Finding) -> None:
    print(f"  {finding.verdict:8}{finding.target:3} {finding.what}: {finding.measured}")
    print(f"{'':14}promised: {finding.promised}", flush=True)


def _measured(name: str, entry: Entry, size: Size) -> dict[str, Any]:
    """Run an entry; a crash or a hang of it is a finding."""
    note(f"{name}, {size}: takes about {entry.expected_s(size):,.0f} s")
    origin = provenance()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as scratch:
        found = run_apart(entry.module, size, Path(scratch), entry.deadline_s(size))
    ended_well = not isinstance(found, str)
    findings = [_crashed(name, found)] if isinstance(found, str) else found
    return {
        "entry": name,
        "question": entry.sentence,
        "size": size,
        **origin,
        "seconds": time.monotonic() - began,
        "ended_well": ended_well,
        "findings": [asdict(finding) for finding in findings],
    }


def _crashed(name: str, why: str) -> Finding:
    """Return the finding of an entry that found nothing; it stands at the tests themselves."""
    what = f"entry {name}"
    measured = " ".join(why.split())
    return Finding(target=25, what=what, measured=measured, promised="it ends", passed=False)


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())
