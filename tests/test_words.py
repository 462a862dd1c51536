"""Phrases that read like a translation stay out of texts that have been rewritten."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

from tests.test_architecture import ROOT, name_of

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
PHRASES = re.compile(rf"\b(?:{'|'.join(map(re.escape, ODD))})\b")

# Python 3.12 and newer cut formatted strings into several tokens.
TEXT = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}

HERE = Path(__file__).resolve()
FOLDERS = ("asyncrl", "benchmarks", "docs", "examples", "tests")
CODE = {
    path: path.read_text(encoding="utf-8")
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py*")
    if path.suffix in {".py", ".pyi"} and path != HERE
}

# Texts that are no code.
TEXTS = (
    ".ci/*",
    "*.md",
    "*.toml",
    "Makefile",
    "benchmarks/**/*.md",
    "benchmarks/**/*.sh",
    "docker/Dockerfile.*",
    "docs/**/*.md",
)


def odd(text: str) -> list[str]:
    """Return the odd phrases of a text, each with the words around it and what to write."""
    text = " ".join(re.sub(r'(?:\b[fr])?"|#', " ", text).split()).lower()
    return [
        f"...{text[max(0, found.start() - 30) : found.end() + 20]}...: write {ODD[found.group()]}"
        for found in PHRASES.finditer(text)
    ]


def tokens(source: str, kinds: set[int]) -> list[str]:
    read = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token.string for token in read if token.type in kinds]


def prose(path: Path) -> str:
    """Return a text without CONTRIBUTING's bad examples, and without tables of kept results."""
    text = path.read_text(encoding="utf-8")
    if path.name.upper() == "CONTRIBUTING.MD":
        return text.partition("| not | but |")[0]
    if path.is_relative_to(ROOT / "benchmarks"):
        return "\n".join(line for line in text.splitlines() if not line.startswith("| "))
    return text


def test_docstrings_comments_and_messages_have_no_odd_phrase() -> None:
    """Few files are cut into tokens, which takes long: those that have a phrase anywhere."""
    suspects = {name_of(path): source for path, source in CODE.items() if odd(source)}
    texts = {name: " ".join(tokens(source, TEXT)) for name, source in suspects.items()}
    assert not {name: phrases for name, text in texts.items() if (phrases := odd(text))}


def test_texts_have_no_odd_phrase() -> None:
    for pattern in TEXTS:
        paths = [path for path in ROOT.glob(pattern) if "reference" not in path.parts]
        assert paths, pattern
        assert not {name_of(path): phrases for path in paths if (phrases := odd(prose(path)))}


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


def test_no_name_has_an_odd_word() -> None:
    found = {}
    for path, source in CODE.items():
        odd_words = ODD_NAMES | ODD_IN.get(path.relative_to(ROOT).parts[0], set())
        pattern = re.compile(rf"(?<![a-z])(?:{'|'.join(odd_words)})(?![a-z])")
        if pattern.search(source.lower()):
            names = {
                name for name in tokens(source, {tokenize.NAME}) if pattern.search(name.lower())
            }
            found |= {name_of(path): names} if names else {}
    assert not found
