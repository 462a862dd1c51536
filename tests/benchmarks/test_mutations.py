"""Which lines are drawn and how they are changed, and that tests of the right room are run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import mutations

CODE = '''
def f(x):
    """A text."""
    if not x and x is 3:
        raise ValueError(x)
    return [x + 1, True, "a"]
'''
TEST = """
from pathlib import Path
def test_same(): assert len({path.read_text() for path in Path("asyncrl").rglob("*.py")}) == 1
"""


def test_what_a_line_becomes(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(CODE)
    drawn = list(mutations.mutations(path))
    assert all(m.changed() != CODE and m.changed().count("\n") == CODE.count("\n") for m in drawn)
    assert {(m.number, m.after.strip()) for m in drawn} == {
        *((4, f"if {words}:") for words in ("(not x or x is 3)", "(x) and x is 3")),
        *((4, f"if not x and {words}:") for words in ("(x is not 3)", "x is (4)")),
        *((5, "pass"), (6, "return None"), (6, 'return [(x - 1), True, "a"]')),
        *((6, f"return [{words}]") for words in ('x + (2), True, "a"', 'x + 1, (False), "a"')),
    }


@pytest.mark.processes
def test_rooms_take_turns_and_their_own_tests_run_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in ("attic", "cellar"):
        for name, text in (("asyncrl/{}/__init__.py", CODE), ("tests/{}/test_f.py", TEST)):
            path = tmp_path / name.format(room)
            path.parent.mkdir(parents=True)
            path.write_text(text)
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    tried = list(mutations.drawn(4, seed=0))
    assert tried == list(mutations.drawn(4, seed=0)), "the seed says which"
    assert [m.path for m in tried[:2]] == [m.path for m in tried[2:]] != [tried[0].path] * 2
    room = tried[0].path.parent.name
    assert f"{room}/test_f.py::test_same" in mutations.caught_by(tried[0], processes=0)
    run: list[tuple[str, ...]] = []
    monkeypatch.setattr(mutations, "failure", lambda _, *words: run.append(words))
    mutations.caught_by(tried[0], processes=0)
    assert run == [("-n0", f"tests/{room}"), ("-n0", "tests", f"--ignore=tests/{room}")]


def test_each_room_has_its_tests() -> None:
    rooms = (mutations.ROOT / "asyncrl").glob("*/__init__.py")
    assert all((mutations.ROOT / "tests" / path.parent.name).is_dir() for path in rooms)
