"""The page's tables are made of saved results, measured at commits of this repository."""

from __future__ import annotations

import json
import lzma
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import make_table
from benchmarks.chaos import table
from benchmarks.common import PAGE, RESULTS, ROOT, insert, is_clean
from benchmarks.learning import freshness
from benchmarks.learning import table as learning_table
from benchmarks.learning.runs import kept as kept_runs
from benchmarks.peers import results

LEARNING = RESULTS / "learning"


def kept(directory: Path, field: str) -> list[dict[str, Any]]:
    read = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
    return [result for result in read if field in result]


TABLES: dict[str, tuple[Callable[[], str], tuple[str, str]]] = {
    "results": (lambda: make_table.render(make_table.load(RESULTS)), make_table.MARKS),
    "peers": (
        lambda: results.render(*results.load_measurements(RESULTS / "peers.json")),
        results.MARKS,
    ),
    "chaos": (lambda: table.render(kept(RESULTS / "chaos", "findings")), table.MARKS),
    "learning": (
        lambda: learning_table.render(*(kept_runs(LEARNING / of) for of in ("", "equal", "peers"))),
        learning_table.MARKS,
    ),
    "freshness": (
        lambda: freshness.render(freshness.load(RESULTS / "freshness.json")),
        freshness.MARKS,
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_kept_results_reproduce_the_page(name: str) -> None:
    render, marks = TABLES[name]
    page = PAGE.read_text(encoding="utf-8")
    assert insert(page, render(), marks) == page


@pytest.mark.parametrize("name", make_table.PICKS)
def test_pages_for_users_show_kept_results(name: str) -> None:
    page, kept_results = (ROOT / name).read_text(encoding="utf-8"), make_table.load(RESULTS)
    measured = {c["what"] for result in kept_results for c in result["comparisons"]}
    for mark, wanted in make_table.PICKS[name].items():
        assert set(wanted) <= measured
        table_of = make_table.picked(name, mark, kept_results)
        assert insert(page, table_of, make_table.marks_of(mark)) == page


def commits_of_shown_rows() -> dict[str, set[str]]:
    """Return where each commit is named."""
    places: dict[str, set[str]] = {}
    rows = [(r["name"], r) for r in make_table.load(RESULTS)]
    rows += [(r["entry"], r) for r in kept(RESULTS / "chaos", "findings")]
    _, beside_peers = results.load_measurements(RESULTS / "peers.json")
    rows += [(m.side, {"commit": m.commit}) for m in results.shown(beside_peers)]
    for folder in ("", "equal", "peers"):
        rows += [(r.name, r.origin) for r in kept_runs(LEARNING / folder) if is_clean(r.origin)]
    rows += [(r["case"], r["origin"]) for r in freshness.load(RESULTS / "freshness.json")]
    for name, origin in rows:
        places.setdefault(origin["commit"], set()).add(name)
    return places


def git(*arguments: str) -> str:
    program = shutil.which("git")
    if program is None:
        pytest.skip("git is not installed")
    done = subprocess.run(  # git itself
        [program, "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"not a clone: {done.stderr.strip()}")
    return done.stdout.strip()


def test_rows_of_the_tables_are_of_commits_in_the_history() -> None:
    if git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("a shallow clone does not have the history")
    if Path(git("rev-parse", "--show-toplevel")) != ROOT:
        pytest.skip("the sources lie in another repository")
    history = git("rev-list", "HEAD").splitlines()
    places = commits_of_shown_rows()
    unknown = {c: places[c] for c in places if not any(h.startswith(c) for h in history if c)}
    assert not unknown, "take these again, or move them to `replaced`"


def test_the_archive_can_be_read() -> None:
    archive = json.loads(lzma.decompress((RESULTS / "archive.json.xz").read_bytes()))
    assert all(json.loads(line) for path in archive for line in parts(path, archive[path]))


def parts(path: str, text: str) -> list[str]:
    return text.splitlines() if path.endswith(".jsonl") else [text]


def test_speed_rows_are_of_clean_commits() -> None:
    assert all(is_clean(result) for result in kept(RESULTS, "comparisons"))
