"""The generated reference is complete: every command, setting, metric and public name is there."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import shlex
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import get_args

import pytest

import asyncrl
from asyncrl.cli import train
from asyncrl.cli.main import COMMANDS
from asyncrl.core.declared import settings_of
from asyncrl.core.errors import ConfigError
from asyncrl.envs.atari import AtariConfig
from asyncrl.metrics import verdict
from asyncrl.metrics.metrics import METRICS
from asyncrl.run.presets import PRESETS, preset
from asyncrl.run.run_config import RunConfig
from benchmarks.learning.offline import OFFLINE_CASES
from benchmarks.learning.tasks import CASES
from docs import generate, measured
from tests.test_architecture import SOURCES, tree_of
from tests.test_readme import SITE


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return generate.pages()


def test_pages_are_those_of_today() -> None:
    """Else run `python -m docs.generate`, and commit what it writes."""
    written, docs = generate.written(), generate.ROOT / "docs"
    for path, text in written.items():
        assert path.read_text(encoding="utf-8") == text, path
    for folder in (docs / "reference", docs / "assets" / "curves"):
        assert set(folder.iterdir()) == {path for path in written if path.parent == folder}


def settings(config: object, group: str = "") -> Iterator[tuple[type, str, str]]:
    """Yield the class, name and group of each setting in a tree of dataclasses."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{group}.{field.name}".removeprefix(".")
        is_one = hasattr(value, "form") or name == "agent.exploration"
        if dataclasses.is_dataclass(value) and not is_one:
            yield from settings(value, name)
        else:
            yield type(config), field.name, name


def test_every_setting_has_an_entry(pages: dict[str, str]) -> None:
    text = pages["settings.md"] + pages["agents.md"]
    names = {name for make in PRESETS.values() for _, _, name in settings(make())}
    names |= {f"env_kwargs.{field.name}" for field in dataclasses.fields(AtariConfig)}
    assert not [name for name in sorted(names) if f"#### `{name}`" not in text]


def test_every_setting_says_what_it_does() -> None:
    for cls, field, name in settings(RunConfig()):
        assert settings_of(cls)[field].text, f"{name} has no docstring"


def test_names_on_a_page_are_distinct(pages: dict[str, str]) -> None:
    """An anchor that is there twice would lead to the first of the two."""
    for page, text in pages.items():
        anchors = re.findall(r'<a id="([^"]+)">', text)
        assert len(anchors) == len(set(anchors)), page


def test_every_command_metric_preset_and_public_name_is_there(pages: dict[str, str]) -> None:
    assert set(generate.COMMANDS) == set(COMMANDS)
    assert all(f"## asyncrl {name}\n" in pages["cli.md"] for name in COMMANDS)
    rows = [f"| `{name}` | {m.unit} | {m.meaning} |" for name, m in METRICS.items()]
    shown_rows = re.findall(r"^\| `.*$", pages["metrics.md"], re.MULTILINE)
    assert sorted(shown_rows) == sorted(rows)
    assert all(f"## {name}\n" in pages["presets.md"] for name in PRESETS)
    shown = set(re.findall(r"^### (\w+)$", pages["api.md"], re.MULTILINE))
    assert set(asyncrl.__all__) <= shown


def test_every_verdict_is_explained() -> None:
    page = (generate.ROOT / "docs" / "start" / "live-view.md").read_text(encoding="utf-8")
    table = page.partition("| verdict |")[2].partition("## The summary")[0]
    assert all(f"`{kind}`" in table for kind in get_args(verdict.Kind))


def text_of(node: ast.AST) -> str:
    """Return a text of the code, with `{}` for what is inserted; "" for other code."""
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"%[-.\d]*[sdfg]", "{}", text)
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) or "{}" for part in parts)
    return ""


def test_quoted_errors_are_those_of_the_code() -> None:
    page = SITE["docs/guides/troubleshooting.md"]
    cells = re.findall(r"^\| (.+?) \|", page, re.MULTILINE)
    quoted = [text for cell in cells for text in re.findall(r"`(.+?)`", cell)]
    longest = [max(text.split("..."), key=len) for text in quoted]

    def may_say_one(path: Path) -> bool:
        """Whether it is worth parsing, which takes most of the time."""
        source = re.sub(r'"\n\s*f?"', "", path.read_text(encoding="utf-8"))
        return any(text in source for text in longest)

    nodes = (node for path in filter(may_say_one, SOURCES) for node in ast.walk(tree_of(path)))
    texts = [text for text in set(map(text_of, nodes)) if " " in text]

    def is_known(quote: str) -> bool:
        pieces = [piece for piece in quote.split("...") if piece.strip()]
        known = re.compile(r".*\{\}.*".join(map(re.escape, pieces)), re.DOTALL)
        return any(known.search(text) for text in texts if pieces[0] in text)

    assert len(quoted) > 30
    assert not [quote for quote in quoted if not is_known(quote)]


PAGES = "\n".join(p.read_text(encoding="utf-8") for p in (generate.ROOT / "docs").rglob("*.md"))
LINES = re.findall(r"^\s*\$ asyncrl train (.+)$", PAGES, re.MULTILINE)


@contextmanager
def naming(line: str) -> Iterator[None]:
    """Say which line has an error; that of files that are a reader's is none."""
    try:
        yield
    except (ConfigError, SystemExit) as error:
        if not re.search("does not exist|No such file", str(error)):
            pytest.fail(f"{line}: {error}")


def test_command_lines_of_pages_are_understood() -> None:
    """Those that name files or modules of a reader's own are left out."""
    lines = sorted({n for n in LINES if "my_" not in n and "/mine/c" not in n})
    assert len(lines) > 20
    known: set[frozenset[str]] = set()
    for line in lines:
        words = shlex.split(line, comments=True)
        flags = frozenset(word for word in words if word.startswith("--"))
        with naming(line):
            assert preset(words[0])
            if flags not in known:  # which takes a tenth of a second
                assert train.parse(words).config
        known.add(flags)


def test_command_of_the_sweep_is_understood() -> None:
    loop = re.findall(r"^```sh\n(.*?)^```", SITE["docs/guides/tuning.md"], re.DOTALL | re.MULTILINE)
    values = dict(re.findall(r"for (\w+) in (\S+)", loop[0]))
    command = re.search(r"asyncrl train (.*?)\n  done", loop[0], re.DOTALL)
    assert command is not None
    words = Template(command[1].replace("\\\n", " ")).substitute(values)
    arguments = train.parse(shlex.split(words))
    assert str(arguments.output.run_dir) == "runs/rates/{rate}-{seed}".format(**values)
    assert arguments.config.seed == int(values["seed"])


def test_command_lines_of_other_commands_are_understood() -> None:
    lines = re.findall(r"^\s*\$ asyncrl (?!train|resume)(\w+ .+)$", PAGES, re.MULTILINE)
    assert len(lines) > 20
    for line in sorted(set(lines)):
        name, *flags = shlex.split(line.partition(" > ")[0], comments=True)
        if (name, flags[:1]) == ("bench", ["tune"]):
            name, flags = "tune", flags[1:]
        with naming(line):
            assert importlib.import_module(f"asyncrl.cli.{name}").parse(flags)


GUIDES = "\n".join(SITE.values())
FILES = re.findall(r"^```yaml\n(.*?)^```", GUIDES, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", FILES)
def test_files_of_pages_are_understood(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in re.findall(r"(my_package\.\w+):(\w+)", text):
        mine = types.ModuleType(module)
        setattr(mine, name, lambda *arguments, **settings: (arguments, settings))
        monkeypatch.setitem(sys.modules, module, mine)
    (tmp_path / "mine.yaml").write_text(text)
    agent = "sac" if "tau" in text else "dqn"
    assert train.parse([agent, "--config", str(tmp_path / "mine.yaml")]).config


def test_every_algorithm_has_a_page_with_its_results() -> None:
    shown = {name for names in measured.ALGORITHMS.values() for name in names}
    assert {case.algorithm for case in (*CASES, *OFFLINE_CASES)} == shown
    folder = generate.ROOT / "docs" / "algorithms"
    assert {path.stem for path in folder.glob("*.md")} == {"index", *measured.ALGORITHMS}
    for page in measured.ALGORITHMS:
        text = (folder / f"{page}.md").read_text(encoding="utf-8")
        assert f"<!-- learned: {page} -->" in text


def test_every_behaviour_is_marked_at_a_test() -> None:
    page = (generate.ROOT / "docs/project/behaviours.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*$", page, re.MULTILINE)
    assert rows == [str(number) for number in range(1, 69)]
    tests = "".join(
        path.read_text(encoding="utf-8") for path in (generate.ROOT / "tests").rglob("test_*.py")
    )
    marked = set(re.findall(r"^ *@pytest\.mark\.behaviour\(number=(\d+)\)$", tests, re.MULTILINE))
    assert marked == set(rows) - {"34"}, "34 is not offered"
