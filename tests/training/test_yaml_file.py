"""YAML is read strictly, and what was written comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.training.run_config import read_yaml, write_yaml


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


def test_empty_file_holds_nothing(path: Path) -> None:
    path.write_text("# nothing yet\n")
    assert read_yaml(path) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("replay:\n  n_step: 5\nactors: 3\nreplay:\n  gamma: 0.9\n", "'replay'.* lines 1 and 4"),
        ("replay:\n  n_step: 5\n  gamma: 0.9\n  n_step: 3\n", "'n_step'.* lines 2 and 4"),
        ("[{a: 1, 'a': 2}]", "'a' is given twice, in lines 1 and 1"),
    ],
)
def test_key_that_is_given_twice_is_refused(path: Path, text: str, sentence: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_yaml(path)


def test_what_is_merged_in_may_be_given_otherwise(path: Path) -> None:
    path.write_text("a: &a {x: 1, y: 2}\nb: &b {<<: *a, y: 3}\nc: {<<: *b, x: 4}\nd: *b\n")
    assert read_yaml(path) == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 4, "y": 3},
        "d": {"x": 1, "y": 3},
    }


@pytest.mark.parametrize("text", ["a: [1,", "a: 1\n b: 2\n", "!!python/object:os.system {}"])
def test_what_is_no_plain_yaml_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_yaml(path)


def test_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"No such file.*x\.yaml"):
        read_yaml(path)
