"""What the tests of sockets share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Protocol, TypeVar

import pytest


class _Closes(Protocol):
    def close(self) -> None: ...


_Link = TypeVar("_Link", bound=_Closes)


class Keep:
    """Closes at the end of a test what was opened in it, the last first."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(self, link: _Link) -> _Link:
        return self._stack.enter_context(closing(link))


@pytest.fixture
def keep() -> Iterator[Keep]:
    with ExitStack() as stack:
        yield Keep(stack)
