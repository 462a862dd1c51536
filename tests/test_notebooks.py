"""The notebooks of the examples run from their first cell to their last."""

from __future__ import annotations

import ast
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pyplot = pytest.importorskip("matplotlib.pyplot")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples/notebooks").glob("*.ipynb"))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What IPython would show, which is not installed here."""
    shown: list[str] = []

    class DisplayHandle:
        def display(self, html: str) -> None:
            shown.append(html)

        update = display

    display = ModuleType("IPython.display")
    display.HTML, display.DisplayHandle = str, DisplayHandle  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def run_cell(code: str, names: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last expression, as notebooks show it."""
    *before, last = ast.parse(code).body
    if not isinstance(last, ast.Expr):
        before, last = [*before, last], ast.Expr(ast.Constant(None))
    exec(compile(ast.Module(before, []), "cell", "exec"), names)
    return eval(
        compile(ast.fix_missing_locations(ast.Expression(last.value)), "cell", "eval"), names
    )


def of_first_run(values: list[Any], out: str) -> None:
    assert out == ""
    assert "1000 env steps" in repr(values[1])
    assert values[2]._repr_png_().startswith(b"\x89PNG")
    assert values[-1] >= 8  # even the worst policy balances that long


def of_comparison(_: list[Any], out: str) -> None:
    assert out.count(" env steps") == 2
    assert len(pyplot.gcf().axes[0].lines) == 2
    pyplot.close()


def of_actors(values: list[Any], out: str) -> None:
    assert "20 opt steps in" in repr(values[0])
    assert "30 opt steps in" in repr(values[1])
    assert out  # the verdict


FEWER = {"20_000": "1_000", "60_000": "1_500", "train(2_000": "train(20", "train(4_000": "train(30"}
"""Steps of the notebooks, and those of a test."""

CHECKS: dict[str, Callable[[list[Any], str], None]] = {
    "actor_processes": of_actors,
    "compare_settings": of_comparison,
    "first_run": of_first_run,
}


@pytest.mark.processes
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(
    path: Path,
    shown: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cells = json.loads(path.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": path.stem}
    for steps, fewer in FEWER.items():
        code = [cell.replace(steps, fewer) for cell in code]
    for _ in range(2):  # as users do
        values = [run_cell(cell, names) for cell in code]
        CHECKS[path.stem](values, capsys.readouterr().out)
    assert ("NotebookRecorder" in "".join(code)) == any("<progress" in html for html in shown)


def test_every_notebook_is_checked() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(CHECKS)


def test_every_notebook_is_stored_with_a_picture() -> None:
    for path in NOTEBOOKS:
        text = path.read_text()
        assert "image/png" in text or "<svg" in text
