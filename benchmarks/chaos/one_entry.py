"""Runs one entry and stores what it found: the process that may crash or hang.

python -m benchmarks.chaos.one_entry MODULE SIZE DIRECTORY FINDINGS
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import psutil

from benchmarks.chaos.finding import Finding, Size
from benchmarks.common import ROOT, note

_LAST_OUTPUT_LINES = 500


def run_apart(module: str, size: Size, scratch: Path, deadline_s: float) -> list[Finding] | str:
    """Run an entry in a separate process; return its findings, or how the process ended.

    Messages name files relative to its scratch directory, since they are published.

    Args:
        module: Module of the entry.
        size: Size of its measurements.
        scratch: An unused directory; the entry's files stay there.
        deadline_s: After this the entry and all its children are killed.
    """
    directory, temporary, found = scratch / "work", scratch / "tmp", scratch / "findings.json"
    directory.mkdir()
    temporary.mkdir()
    command = [sys.executable, "-m", "benchmarks.chaos.one_entry"]
    command += [module, size, str(directory), str(found)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with (scratch / "stdout").open("wb") as output:
        process = subprocess.Popen(  # noqa: S603  # our own module
            command, cwd=ROOT, env=environment, stdout=output
        )
        try:
            code = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return f"was not done after {deadline_s:.0f} s"
        finally:
            _end(process)
    here = f"{scratch}{os.sep}"
    if code:
        last = _last_output(found.with_suffix(".error")).replace(here, "")
        return last or f"ended with exit code {code}"
    stored = found.read_text(encoding="utf-8").replace(here, "")
    return [Finding(**each) for each in json.loads(stored)]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it with whatever it started, if it still runs."""
    if process.poll() is not None:
        return
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def _last_output(path: Path) -> str:
    return path.read_text(encoding="utf-8")[-_LAST_OUTPUT_LINES:] if path.exists() else ""


def main() -> None:
    """Measure and save; an exception is saved, too, and printed."""
    module, size, directory, found = sys.argv[1:]
    logging.basicConfig(filename=Path(found).with_suffix(".log"))  # of faults that are meant
    try:
        findings = importlib.import_module(module).measure(size, Path(directory))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        Path(found).with_suffix(".error").write_text(text, encoding="utf-8")
        note(text)
        raise
    stored = json.dumps([asdict(finding) for finding in findings])
    Path(found).write_text(stored, encoding="utf-8")


if __name__ == "__main__":
    main()
