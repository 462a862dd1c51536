"""What is kept makes the tables of the page as they stand; a page without a place is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import make_table
from benchmarks.chaos import table
from benchmarks.common import PAGE, RESULTS, insert
from benchmarks.peers import faults, results


def kept(directory: Path, field: str) -> list[dict[str, Any]]:
    read = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
    return [result for result in read if field in result]


TABLES: dict[str, tuple[Callable[[], str], tuple[str, str]]] = {
    "results": (lambda: make_table.render(kept(RESULTS, "comparisons")), make_table.MARKS),
    "peers": (
        lambda: results.render(*results.load_measurements(RESULTS / "peers.json")),
        results.MARKS,
    ),
    "chaos": (lambda: table.render(kept(RESULTS / "chaos", "findings")), table.MARKS),
    "faults": (lambda: faults.render(faults.load(RESULTS / "chaos" / "peers.json")), faults.MARKS),
}


@pytest.mark.parametrize("name", TABLES)
def test_kept_results_make_the_page_as_it_is(name: str) -> None:
    render, marks = TABLES[name]
    page = PAGE.read_text(encoding="utf-8")
    assert insert(page, render(), marks) == page


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the two lines"):
        insert("an end and a begin", "table", make_table.MARKS)
