"""YAML is read strictly, and what was written comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.run.yaml_file import read_yaml, write_yaml


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.yaml"


def test_what_was_written_comes_back_in_its_order(path: Path) -> None:
    plain = {"b": [1, 2.5, None], "a": {"text": "line\u2028separator \u00fc", "off": "off"}}
    write_yaml(plain, path)
    back = read_yaml(path)
    assert back == plain
    assert isinstance(back, dict)
    assert list(back) == ["b", "a"]
    assert path.read_bytes().isascii()
    path.write_text("# nothing\n")
    assert read_yaml(path) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("replay:\n  n_step: 5\nactors: 3\nreplay:\n  gamma: 0.9\n", "'replay'.* lines 1 and 4"),
        ("replay:\n  n_step: 5\n  gamma: 0.9\n  n_step: 3\n", "'n_step'.* lines 2 and 4"),
        ("[{a: 1, 'a': 2}]", "'a'.* lines 1 and 1"),
        ("a: 1\nb: {<<: [1]}", "line 2.* mapping"),
        ("a: [1,", "line 1"),
        ("a: 1\n b: 2\n", "line 2"),
        ("!!python/object:os.system {}", "python/object:os.system"),
    ],
)
def test_what_is_no_plain_yaml_is_refused(path: Path, text: str, sentence: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_yaml(path)


def test_what_is_merged_in_may_be_given_otherwise(path: Path) -> None:
    """Written out in full, as versions of PyYAML resolve some of these differently."""
    path.write_text(
        "a: &a {x: 1, gamma: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, gamma: 4}\nd: *b\n"
        "e: {<<: [*b, *a]}\nf: {<<: [*a, *b], z: 5}\n"
    )
    assert read_yaml(path) == {
        "a": {"x": 1, "gamma": 2},
        "b": {"x": 3, "gamma": 2},
        "c": {"x": 3, "gamma": 4},
        "d": {"x": 3, "gamma": 2},
        "e": {"x": 3, "gamma": 2},
        "f": {"x": 1, "gamma": 2, "z": 5},
    }


def test_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"No such file.*x\.yaml"):
        read_yaml(path)
