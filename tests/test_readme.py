"""The README and the site are true: programs run, metrics are the list, named files are there."""

from __future__ import annotations

import importlib
import operator
import re
from pathlib import Path

import pytest

from asyncrl.metrics.metrics import METRICS
from tests.support import warm
from tests.test_architecture import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
SITE = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if path.parent.name != "reference"
}
SHOWN = "\n".join([README, *SITE.values()])
PROGRAMS = dict(re.findall(r"<!-- run: (\w+) -->\n```python\n(.*?)```", SHOWN, re.DOTALL))

_DEADLINE_S = 90.0


def test_every_program_is_run() -> None:
    """A marker with a typo in it would be a program that nobody runs."""
    assert len(PROGRAMS) == SHOWN.count("```python\n") == SHOWN.count("<!-- run:") >= 2


@pytest.mark.parametrize("name", re.findall(r"``` { .python }\n--8<-- \"(.*?)\"", SHOWN))
def test_included_program_is_an_example(name: str) -> None:
    """Those have tests of their own."""
    assert Path(name).stem in (ROOT / "tests" / "test_examples.py").read_text(encoding="utf-8")


@pytest.mark.processes
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs_as_it_stands(name: str, tmp_path: Path) -> None:
    # One of them is started as users do; the others need not load torch again.
    fresh = name == next(iter(PROGRAMS))
    done = warm.run("code", [PROGRAMS[name]], cwd=tmp_path, timeout_s=_DEADLINE_S, fresh=fresh)
    assert done.returncode == 0, done.stderr
    assert done.stdout, "each of them prints how it went"


def metric_table() -> str:
    """Return the list of metrics as the README is to show it."""
    lines = ["| name | unit | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {m.unit} | {m.meaning} |" for name, m in METRICS.items()]
    return "\n".join(lines)


def test_table_of_metrics_is_the_list() -> None:
    (shown,) = re.findall(r"<!-- metrics -->\n(.*?)\n<!-- /metrics -->", README, re.DOTALL)
    table = metric_table()
    assert shown.strip() == table, f"write this into README.md:\n{table}"


def named_files() -> set[str]:
    """Return links into this repository, and what looks like a path or a file of the package.

    Links of the site are checked when it is built.
    """
    text, site = (re.sub(r"```.*?```", "", t, flags=re.DOTALL) for t in (README, SHOWN))
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    quoted = re.findall(r"`([\w./-]+\.(?:py|md|toml))`", site)
    return {*links, *quoted}


@pytest.mark.parametrize("name", sorted(named_files()))
def test_named_file_exists(name: str) -> None:
    """Modules are named without the package's name, as in `agents/dqn.py`."""
    assert (ROOT / name).exists() or (ROOT / "asyncrl" / name).exists()


def test_links_within_the_page_lead_somewhere() -> None:
    titles = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", README, flags=re.DOTALL), re.MULTILINE
    )
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]*)\)", README)) <= anchors


WALKS = {
    "README.md": README.partition("## Follow one transition")[2].partition("\n## ")[0],
    "docs": SITE["docs/concepts/transition.md"],
}


@pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS)
def test_stations_of_a_transition_are_where_they_are_said_to_be(walk: str) -> None:
    stations = re.findall(r"`([\w/]+)\.py`\s+`([\w.]+)`", walk)
    assert len(stations) > 8
    for path, name in stations:
        module = importlib.import_module("asyncrl." + path.replace("/", "."))
        names = [name] if hasattr(module, name.partition(".")[0]) else []
        methods = {m for cls in vars(module).values() if isinstance(cls, type) for m in vars(cls)}
        assert names or name in methods, f"{path}.py has no {name}"
        if names:
            assert operator.attrgetter(name)(module)
