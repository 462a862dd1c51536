"""Tells people what is about to begin, and to be allocated: they see no log of what goes well."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.training.run_config import RunConfig


class _Printing(logging.Handler):
    """Prints what is no warning; warnings have their own way."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            print(record.getMessage(), flush=True)


def tell_of_run(agent: str, config: RunConfig, run_dir: Path) -> None:
    """Print what is trained, where it goes, and how it ends if nothing else ends it."""
    print(f"training {agent} on {config.env}, results in {run_dir}", flush=True)
    if config.stop_condition() is None:
        print("no limit is set, so it goes on until Ctrl-C, which saves it first", flush=True)


@contextmanager
def telling_of_replay(*, quiet: bool) -> Iterator[None]:
    """Print how much memory a replay will take, once that is known and before it is taken."""
    logger, handler = logging.getLogger("asyncrl.replay"), _Printing()
    before = logger.level
    if not quiet:
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
