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
REFERENCE = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs" / "reference").glob("*.md"))
}
PAGES = {"README.md": README, **SITE, **REFERENCE}
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
    """A marker with a typo in it would be a program that no test runs; examples have own tests."""
    marked = len(re.findall(r"<!-- run\b", SHOWN))
    examples = re.findall(r"<!-- code: examples/(\w+)\.py -->\n```python\n", SHOWN)
    assert len(PROGRAMS) + len(READERS) == SHOWN.count("```python\n") - len(examples) == marked >= 2
    tested = (ROOT / "tests" / "test_examples.py").read_text(encoding="utf-8")
    assert len(examples) > 5
    assert not [name for name in examples if name not in tested]


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
    assert len(README.splitlines()) <= 140


def named_files() -> set[str]:
    """Return what looks like a path or a file of the package, on pages written by hand."""
    text = re.sub(r"<!-- (\w+): .*?<!-- end of \1 -->|```.*?```", "", SHOWN, flags=re.DOTALL)
    return set(re.findall(r"`([\w./-]+\.(?:py|md|toml))`", text))


def test_named_files_exist() -> None:
    """Modules are named without the package's name, as in `agents/dqn.py`."""
    places = (ROOT, ROOT / "asyncrl")
    assert not [n for n in named_files() if not any((place / n).exists() for place in places)]


def anchors_of(text: str) -> set[str]:
    """Return where links into a page can lead, as GitHub and the site name headings."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in plain}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", ["README.md", *SITE, *REFERENCE])
def test_links_lead_somewhere(page: str) -> None:
    """Pages are read in the repository, too."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", PAGES[page], flags=re.DOTALL)
    for link, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)#?([^)\s]*)\)", text):
        target = ((ROOT / page).parent / link).resolve() if link else ROOT / page
        assert target.exists(), link
        name = target.relative_to(ROOT).as_posix()
        if anchor and name in PAGES:
            assert anchor in anchors_of(PAGES[name]), f"{link}#{anchor}"


def test_pages_read_well_where_they_lie() -> None:
    """Neither GitHub nor an editor knows what only the builder of a site would replace."""
    raw = re.compile(r"^--8<--|^::: |^=== \"|\{ ?[.#][\w-]+ ?\}", re.MULTILINE)
    for page, text in PAGES.items():
        prose = re.sub(r"^```\w.*?^```|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
        found = raw.search(prose)
        assert not found, f"{page}: {found[0]}"


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
