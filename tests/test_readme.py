"""The README and the site are true: programs run, named files are there, README.md is short."""

from __future__ import annotations

import importlib
import operator
import re
from pathlib import Path

import pytest

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
READERS = dict(
    re.findall(r"<!-- run beside a run: (\w+) -->\n```python\n(.*?)```", SHOWN, re.DOTALL)
)
"""Programs that read a run in `runs/mine`."""

RUN = """
    train dqn --mode sync --quiet --run-dir runs/mine --max-opt-steps 60 --agent.hidden 16
    --limiter.min-size 64 --trainer.batch-size 16 --save.interval-opt-steps 20
    --evaluate.interval-opt-steps 20 --evaluate.play.episodes 2
""".split()

_DEADLINE_S = 90.0


def fewer_steps(code: str) -> str:
    """Return a program that ends soon: what it reaches is no matter here."""
    return re.sub(r"((?:MaxOptSteps\(|opt_steps=|run_until\())[1-9]\d\d+", r"\g<1>60", code)


def test_every_program_is_run() -> None:
    """A marker with a typo in it would be a program that no test runs."""
    marked = len(re.findall(r"<!-- run\b", SHOWN))
    assert len(PROGRAMS) + len(READERS) == SHOWN.count("```python\n") == marked >= 2


def test_code_of_pages_is_run_or_an_example() -> None:
    """The one exception is the code of another library."""
    blocks = re.findall(r"^ *``` \{ \.python.*\}\n(.*)\n", SHOWN, re.MULTILINE)
    others = [first.strip() for first in blocks if not first.startswith('--8<-- "examples/')]
    assert others == ["from stable_baselines3 import SAC"]


def test_included_programs_are_examples() -> None:
    """Those have separate tests."""
    tested = (ROOT / "tests" / "test_examples.py").read_text(encoding="utf-8")
    names = re.findall(r"``` { .python }\n--8<-- \"(.*?)\"", SHOWN)
    assert not [name for name in names if Path(name).stem not in tested]


@pytest.mark.processes
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs(name: str, tmp_path: Path) -> None:
    # One of them is started as users do; the others need not load torch again.
    fresh = name == next(iter(PROGRAMS))
    code = fewer_steps(PROGRAMS[name])
    done = warm.run("code", [code], cwd=tmp_path, timeout_s=_DEADLINE_S, fresh=fresh)
    assert done.returncode == 0, done.stderr
    assert done.stdout, "each of them prints how it went"


@pytest.fixture(scope="module")
def beside_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("beside")
    done = warm.run("asyncrl", RUN, cwd=place, timeout_s=_DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.processes
@pytest.mark.parametrize("name", READERS)
def test_program_reads_a_run(name: str, beside_a_run: Path) -> None:
    done = warm.run("code", [READERS[name]], cwd=beside_a_run, timeout_s=_DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout, "each of them prints what it has read"


def test_readme_is_short() -> None:
    """What does not fit is a page in `docs/`."""
    assert len(README.splitlines()) <= 200


def named_files() -> set[str]:
    """Return links into this repository, and what looks like a path or a file of the package.

    Links of the site are checked when it is built.
    """
    text, site = (re.sub(r"```.*?```", "", t, flags=re.DOTALL) for t in (README, SHOWN))
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    quoted = re.findall(r"`([\w./-]+\.(?:py|md|toml))`", site)
    return {*links, *quoted}


def test_named_files_exist() -> None:
    """Modules are named without the package's name, as in `agents/dqn.py`."""
    places = (ROOT, ROOT / "asyncrl")
    assert not [n for n in named_files() if not any((place / n).exists() for place in places)]


def test_links_to_headings_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]*)\)", README)
    assert links
    for page, anchor in links:
        text = (ROOT / (page or "README.md")).read_text(encoding="utf-8")
        text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert anchor in anchors, page


def test_steps_of_a_transition_are_where_the_page_says() -> None:
    stations = re.findall(r"`([\w/]+)\.py`\s+`([\w.]+)`", SITE["docs/concepts/transition.md"])
    assert len(stations) > 8
    for path, name in stations:
        module = importlib.import_module("asyncrl." + path.replace("/", "."))
        names = [name] if hasattr(module, name.partition(".")[0]) else []
        methods = {m for cls in vars(module).values() if isinstance(cls, type) for m in vars(cls)}
        assert names or name in methods, f"{path}.py has no {name}"
        if names:
            assert operator.attrgetter(name)(module)
