"""An exception in words."""

from __future__ import annotations

import pytest

from asyncrl.core.errors import describe_error


def raise_error() -> None:
    raise LookupError("x")


@pytest.mark.fault("F4")
def test_error_in_one_line() -> None:
    class Speechless(Exception):
        def __str__(self) -> str:
            raise SystemExit("no words")

    with pytest.raises(LookupError) as caught:
        raise_error()
    place = f"{__file__}:{raise_error.__code__.co_firstlineno + 1} in raise_error"
    assert describe_error(caught.value) == f"LookupError: x (at {place})"
    assert describe_error(ValueError("the wheel\n  came off")) == "ValueError: the wheel came off"
    assert describe_error(AssertionError()) == "AssertionError"
    assert describe_error(Speechless()) == "Speechless"
