"""An exception in words."""

from __future__ import annotations

import pytest

from asyncrl.core.errors import describe_error


@pytest.mark.fault("F4")
def test_error_in_one_line() -> None:
    class Speechless(Exception):
        def __str__(self) -> str:
            raise SystemExit("no words")

    assert describe_error(ValueError("the wheel\n  came off")) == "ValueError: the wheel came off"
    assert describe_error(AssertionError()) == "AssertionError"
    assert describe_error(Speechless()) == "Speechless"
