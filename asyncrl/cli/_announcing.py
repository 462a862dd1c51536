"""Lets what is about to be allocated be told to people, who see no other log of what goes well."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["telling_of_replay"]


class _Printing(logging.Handler):
    """Prints what is no warning; warnings have their own way."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            print(record.getMessage(), flush=True)


@contextmanager
def telling_of_replay(*, quiet: bool) -> Iterator[None]:
    """Print how much memory a replay will take, once that is known and before it is taken."""
    logger, handler = logging.getLogger("asyncrl.replay_buffers"), _Printing()
    before = logger.level
    if not quiet:
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
