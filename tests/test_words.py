"""Phrases that read like a translation stay out of texts that have been rewritten."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_architecture import ROOT, SOURCES, name_of, tree_of

# All rooms: their docstrings, comments and messages are held to the list.
DONE = sorted(path.name for path in (ROOT / "asyncrl").iterdir() if (path / "__init__.py").exists())

# Phrase -> what to write instead.
ODD = {
    "accounts for itself": "say what is counted",
    "anew": "again, or name the action: reset, rebuild, resample",
    "as it was": "unchanged",
    "as they were": "unchanged",
    "at the most": "at most, maximum",
    "became of": "the outcome, the end",
    "came of": "the outcome, the result",
    "drawn beforehand": "precomputed",
    "everybody": "name who: every actor, all processes",
    "fits and starts": "with pauses",
    "for ever": "forever",
    "former life": "earlier incarnation",
    "former run": "earlier run",
    "goes on": "continues, resumes",
    "however long": "name the limit",
    "in good order": "without an error, as a stop condition does",
    "in vain": "without effect",
    "is to": "imperative, or must",
    "are to": "imperative, or must",
    "knows no": "does not know, knows nothing about",
    "lets go": "releases",
    "likeliest": "most likely",
    "nobody": "name who: no actor, no thread",
    "numbers that are none": "NaN",
    "of its own": "separate, custom",
    "of one's own": "separate, custom",
    "of their own": "separate, custom",
    "of the user's own": "custom",
    "slow copy": "target network",
    "slow copies": "target networks",
    "so long": "for this time, after it",
    "so many": "this number of",
    "somebody": "name who",
    "take in": "process, add, receive",
    "takes in": "processes, adds, receives",
    "takes part": "name what it does",
    "tell": "return, report, show",
    "tells": "returns, reports, shows",
    "there is none": "if missing, without",
    "told": "reported, asked, shown",
    "whoever": "name who",
}
PHRASES = re.compile(rf"\b(?:{'|'.join(map(re.escape, ODD))})\b", re.IGNORECASE)

# Python 3.12 and newer cut formatted strings into several tokens.
TEXT = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
SETTINGS = ("Arguments", "Config", "Options", "Output", "Workload")


def odd(text: str) -> list[str]:
    """Return the odd phrases of a text, each with the words around it and what to write."""
    text = " ".join(re.sub(r'["#]', " ", text).split())
    return [
        f"...{text[max(0, found.start() - 30) : found.end() + 20]}...: write "
        f"{ODD[found.group().lower()]}"
        for found in PHRASES.finditer(text)
    ]


def written(path: Path) -> str:
    """Return the docstrings, comments and messages of a file."""
    source = io.StringIO(path.read_text(encoding="utf-8"))
    return " ".join(t.string for t in tokenize.generate_tokens(source.readline) if t.type in TEXT)


def prose(path: Path) -> str:
    """Return a text without CONTRIBUTING's bad examples, and without tables of kept results."""
    text = path.read_text(encoding="utf-8")
    if path.name == "CONTRIBUTING.md":
        return text.partition("| not | but |")[0]
    if path.is_relative_to(ROOT / "benchmarks"):
        return "\n".join(line for line in text.splitlines() if not line.startswith("| "))
    return text


def help_texts() -> Iterator[tuple[str, str]]:
    """Yield each setting's name and help text: the docstring under its field."""
    for path in SOURCES:
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.ClassDef) or not node.name.endswith(SETTINGS):
                continue
            for name, text in zip(node.body, node.body[1:], strict=False):
                if isinstance(name, ast.AnnAssign) and isinstance(text, ast.Expr):
                    yield (
                        f"{node.name}.{ast.unparse(name.target)}",
                        str(ast.literal_eval(text.value)),
                    )


@pytest.mark.parametrize("room", DONE)
def test_rewritten_room_has_no_odd_phrase(room: str) -> None:
    paths = [path for path in SOURCES if ROOT / "asyncrl" / room in path.parents]
    found = {name_of(path): phrases for path in paths if (phrases := odd(written(path)))}
    assert paths
    assert not found


HERE = Path(__file__).resolve()

# Texts outside the rooms.
TEXTS = (
    ".ci/*",
    "*.md",
    "*.toml",
    "Makefile",
    "asyncrl/*.py*",
    "benchmarks/**/*.md",
    "benchmarks/**/*.py",
    "benchmarks/**/*.sh",
    "docker/Dockerfile.*",
    "docs/**/*.md",
    "docs/*.py",
    "examples/*.py",
    "tests/**/*.py",
)


@pytest.mark.parametrize("pattern", TEXTS)
def test_rewritten_text_has_no_odd_phrase(pattern: str) -> None:
    paths = [path for path in ROOT.glob(pattern) if "reference" not in path.parts and path != HERE]
    texts = {
        name_of(path): written(path) if path.suffix == ".py" else prose(path) for path in paths
    }
    assert paths
    assert not {name: phrases for name, text in texts.items() if (phrases := odd(text))}


WORDS = re.compile("[a-z]+")

# Names are made of these no more than texts are.
ODD_NAMES = {
    "anew",
    "bookkeeper",
    "books",
    "everybody",
    "nobody",
    "somebody",
    "tells",
    "told",
    "whoever",
}
# Only games have lives; an actor has incarnations.
ODD_IN = {"benchmarks": {"life", "lives"}}


@pytest.mark.parametrize("folder", ["asyncrl", "benchmarks", "docs", "examples", "tests"])
def test_no_name_has_an_odd_word(folder: str) -> None:
    found, words = {}, ODD_NAMES | ODD_IN.get(folder, set())
    for path in (ROOT / folder).rglob("*.py"):
        source = io.StringIO(path.read_text(encoding="utf-8"))
        names = {
            t.string for t in tokenize.generate_tokens(source.readline) if t.type == tokenize.NAME
        }
        if odd_names := {name for name in names if words & {*WORDS.findall(name.lower())}}:
            found[name_of(path)] = odd_names
    assert not found


def test_help_of_settings_has_no_odd_phrase() -> None:
    texts = dict(help_texts())
    assert "ActorManagerConfig.step_timeout_s" in texts
    assert not {name: phrases for name, text in texts.items() if (phrases := odd(text))}


@pytest.mark.parametrize("phrase", ODD)
def test_odd_phrase_is_found_across_lines(phrase: str) -> None:
    assert odd('"one\n    # ' + phrase.replace(" ", '"\n    "').capitalize() + ', two"')
    assert not odd(f"x{phrase}x")
