"""What was measured once in a process is kept, and may be set from another process's choices."""

from __future__ import annotations

import pytest

from asyncrl.core import measured as module
from asyncrl.core.measured import assume, choices, measured


@pytest.fixture(autouse=True)
def no_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_choices", {})


def test_choice_is_measured_once() -> None:
    answers = iter([True, False])
    assert [measured("a", lambda: next(answers)) for _ in range(3)] == [True] * 3
    assert choices() == {"a": True}


def test_assumed_choice_is_not_measured() -> None:
    assume({"a": False})
    assert measured("a", lambda: True) is False
