from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.core.errors import WireError
from asyncrl.transport.wire import DTYPES, Fields, view


@pytest.mark.parametrize(
    ("take", "value"),
    [
        (lambda f: f.integer("x"), 3),
        (lambda f: f.number("x"), 0.5),
        (lambda f: f.text("x"), "text"),
        (lambda f: f.flag("x"), True),
        (lambda f: f.topic(), "act"),
        (lambda f: f.numbers("x"), {"a": 1.0}),
        (lambda f: f.layout(100), [("w", "float32", (2, 3))]),
    ],
)
def test_fields_are_taken_as_they_are(take: Any, value: Any) -> None:
    sent = [["w", "float32", 2, 3]] if isinstance(value, list) else value
    fields = Fields([sent])
    assert take(fields) == value
    fields.end()


@pytest.mark.parametrize(
    ("take", "value"),
    [
        (lambda f: f.integer("x"), True),
        (lambda f: f.integer("x"), 1.0),
        (lambda f: f.integer("x"), -1),
        (lambda f: f.integer("x", 1, 5), 6),
        (lambda f: f.number("x"), "1"),
        (lambda f: f.number("x"), False),
        (lambda f: f.text("x"), b"bytes"),
        (lambda f: f.flag("x"), 1),
        (lambda f: f.topic(), "gossip"),
        (lambda f: f.numbers("x"), {"a": "1"}),
        (lambda f: f.numbers("x"), {b"a": 1.0}),
        (lambda f: f.numbers("x"), {"a": True}),
        (lambda f: f.numbers("x"), [1.0]),
        (lambda f: f.layout(100), [["w", "float32", 5, 6]]),
        (lambda f: f.layout(100), [["w", "complex64", 1]]),
        (lambda f: f.layout(100), ["w"]),
        (lambda f: f.layout(100), [[1, "float32", 1]]),
    ],
)
def test_a_field_of_another_type_or_range_is_refused(take: Any, value: Any) -> None:
    fields = Fields([value])
    fields.kind = "Greeting"
    with pytest.raises(WireError, match="Greeting"):
        take(fields)


def test_missing_and_surplus_fields_are_refused() -> None:
    with pytest.raises(WireError, match="x is missing"):
        Fields([]).integer("x")
    with pytest.raises(WireError, match="too long"):
        Fields([None]).end()


def test_a_view_has_exactly_the_bytes_of_its_shape() -> None:
    data = memoryview(np.arange(6, dtype=np.float32).tobytes())
    array = view("w", data, DTYPES["float32"], (2, 3))
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert not array.flags.writeable
    with pytest.raises(WireError, match="24 bytes, not 20"):
        view("w", data, DTYPES["float32"], (5,))
