"""What a browser makes of a report: its charts, its axes, its errors."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from asyncrl.report.one_run import report_of_run
from asyncrl.report.run_files import RunFiles
from asyncrl.training.presets import preset
from tests.report.runs import made_run
from tests.report.test_one_run import RECORDS, SUMMARY

BROWSER = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None
)


@pytest.mark.processes
@pytest.mark.skipif(BROWSER is None, reason="needs a browser: Debian's chromium-headless-shell")
@pytest.mark.parametrize("axis", ["env_steps", "wall_s"])
def test_browser_draws_all_charts_over_the_chosen_axis(tmp_path: Path, axis: str) -> None:
    """Also where names look like programs."""
    name = "<img src=x onerror=document.title='run'>"
    records = [{**record, f"agent/{name}": 1.0} for record in RECORDS]
    run = made_run(tmp_path / "mine", preset("dqn"), records=records, summary=SUMMARY)
    path = tmp_path / "report.html"
    path.write_text(report_of_run(RunFiles(run)))
    browse = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    browse += [f"--user-data-dir={tmp_path / 'browser'}", "--virtual-time-budget=5000"]
    seen = subprocess.run(
        [str(BROWSER), *browse, "--dump-dom", f"file://{path}#{axis}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "CONSOLE" not in seen.stderr
    assert f'data-drawn="5 over {axis}"' in seen.stdout
    assert seen.stdout.count("<canvas") == 5
    assert "<title>mine - asyncrl</title>" in seen.stdout
    assert not re.search(r"<img[^>]*onerror", seen.stdout)
