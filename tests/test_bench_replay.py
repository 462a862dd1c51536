"""The benchmark of replay measures what it says, on a small scale."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.common import ROOT

DEADLINE_S = 100


def test_replay_is_compared_with_bare_selection(tmp_path: Path) -> None:
    small = ["--rows", 512, "--frames", 64, "--batch-size", 8, "--seconds", 0.01, "--repeats", 2]
    command = [sys.executable, "-m", "benchmarks.bench_replay", "--results", tmp_path]
    done = subprocess.run(
        [*map(str, command), *map(str, small), "--peers", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "skipped: there is no" in done.stderr, "no peer is there"
    result = json.loads(done.stdout)
    assert json.loads((tmp_path / "replay.json").read_text()) == result
    assert [c["what"] for c in result["comparisons"]] == [
        "sample 8 of 512 transitions / torch.index_select of as many bytes",
        "sample 8 of 64 frames / torch.index_select of as many bytes",
        "90 % of samples of 8 transitions beside a pushing thread / at rest",
        "90 % of samples of 8 frames beside a pushing thread / at rest",
    ]
    assert all(len(c["ratios"]) == 2 and c["ratio"] > 0 for c in result["comparisons"])
