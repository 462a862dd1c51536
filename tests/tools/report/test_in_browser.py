"""What a browser makes of a report: its charts, its axes, its errors, its updates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from asyncrl.run.presets import preset
from asyncrl.tools.report import live
from asyncrl.tools.report.live import LiveReport
from asyncrl.tools.report.one_run import report_of_run
from asyncrl.tools.report.run_files import RunFiles
from tests.tools.report.browser import PROGRAM, Tab, browser
from tests.tools.report.runs import made_run
from tests.tools.report.test_live import append
from tests.tools.report.test_one_run import RECORDS, SUMMARY

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(PROGRAM is None, reason="needs a browser: Debian's chromium-headless-shell"),
]

NAME = "<img src=x onerror=document.title='run'>"
HOSTILE = [{**record, f"agent/{NAME}": 1.0} for record in RECORDS]


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    with browser(tmp_path / "browser") as opened:
        yield opened


def is_drawn(charts: int, axis: str) -> str:
    return f"document.documentElement?.dataset.drawn === '{charts} over {axis}'"


def test_browser_draws_all_charts_over_the_chosen_axis(tab: Tab, tmp_path: Path) -> None:
    """Also where names look like programs."""
    run = made_run(tmp_path / "mine", preset("dqn"), records=HOSTILE, summary=SUMMARY)
    path = tmp_path / "report.html"
    path.write_text(report_of_run(RunFiles(run)))
    tab.open(f"file://{path}#wall_s")
    tab.wait_for(is_drawn(5, "wall_s"))
    tab.value("document.querySelector('input[value=env_steps]').click()")
    tab.wait_for(is_drawn(5, "env_steps"))
    assert tab.value("document.querySelectorAll('canvas').length") == 5
    assert tab.value("document.querySelectorAll('img').length") == 0
    assert tab.value("document.title") == "mine - asyncrl"
    assert not tab.complaints


def test_open_page_shows_later_records_and_keeps_what_the_reader_chose(
    tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_INTERVAL_S", 0.01)
    monkeypatch.setattr(live, "_LONGEST_PAUSE_S", 0.01)
    run = made_run(tmp_path / "mine", preset("dqn"), records=RECORDS[:4], host="another")
    with closing(LiveReport(run)) as report:
        report.serve()
        tab.open(report.url)
        tab.wait_for(is_drawn(4, "env_steps"))
        tab.wait_for("document.querySelector('.status').textContent === 'live'")
        tab.value("document.querySelector('input[value=wall_s]').click()")
        tab.value("document.querySelector('summary').click()")
        tab.value("document.querySelector('canvas').id = 'first'")
        append(run, HOSTILE[4])
        append(run, HOSTILE[5])
        tab.wait_for("document.querySelector('dl').textContent.includes('800')")
        tab.wait_for(is_drawn(5, "wall_s"))
        assert tab.value("document.querySelector('canvas').id") == "first"
        assert tab.value("document.querySelector('details').open")
        assert tab.value("document.querySelector('input[value=wall_s]').checked")
        assert tab.value("document.querySelectorAll('img').length") == 0
        assert tab.value("document.title") == "mine - asyncrl"
    tab.wait_for("document.querySelector('.status').textContent === 'the run has ended'")
    assert not tab.complaints
