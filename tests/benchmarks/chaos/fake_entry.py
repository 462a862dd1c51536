"""An entry that fails as the environment says; for tests of the frame."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from benchmarks.chaos.finding import Finding, Size, not_run


def measure(_: Size, directory: Path) -> list[Finding]:
    assert list(directory.iterdir()) == []
    match os.environ["FAKE_ENTRY"]:
        case "crash":
            os.abort()
        case "raise":
            raise ValueError(f"the wheel | came off: {directory / 'wheel'}")
        case "hang":
            threading.Event().wait()
    kept = os.environ["FAKE_ENTRY"] == "kept"
    made = Finding(
        target=3,
        what="a hang",
        measured="1 | 2 s" if kept else f"no {directory / 'wheel'}",
        promised="<= 1 s",
        passed=kept,
        timed=os.environ["FAKE_ENTRY"] == "late",
        numbers={"s": 1.5},
    )
    return [made, not_run(4, "a pause", "<= 200 ms", "no root")]
