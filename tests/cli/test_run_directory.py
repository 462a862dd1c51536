from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from asyncrl.cli.run_directory import keeping_warnings
from asyncrl.cli.train import _order_line

logger = logging.getLogger("asyncrl.test_run_directory")


def test_warnings_are_kept_once_the_run_begins(tmp_path: Path) -> None:
    kept = tmp_path / "warnings.log"
    with keeping_warnings(tmp_path) as begin:
        logger.warning("before it begins")
        assert not kept.exists()
        begin()
        logger.info("no warning")
        logger.error("in the run")
        lines = kept.read_text().splitlines()
        kept.unlink()
        logger.warning("after the file was removed")
    logger.warning("after the run")
    assert [line.split(" ", 1)[1] for line in lines] == [
        "WARNING asyncrl.test_run_directory: before it begins",
        "ERROR asyncrl.test_run_directory: in the run",
    ]
    assert kept.read_text().splitlines()[0].endswith(": after the file was removed")
    assert len(kept.read_text().splitlines()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_disk_without_room_for_a_warning_does_not_end_the_run(tmp_path: Path) -> None:
    """The warning may be about the full disk."""
    (tmp_path / "warnings.log").symlink_to("/dev/full")
    with keeping_warnings(tmp_path) as begin:
        logger.warning("before it begins")
        begin()
        logger.warning("the disk is full")


def test_directory_that_is_gone_does_not_end_the_run(tmp_path: Path) -> None:
    with keeping_warnings(tmp_path / "gone") as begin:
        begin()
        logger.warning("the directory is gone")


def test_summary_shows_the_size_of_a_recorded_order_or_that_it_is_gone(tmp_path: Path) -> None:
    for name in ("order", "order-2"):  # of the run, and of its part that was resumed
        (tmp_path / name).write_bytes(bytes(500_000))
    assert "1 MB, for asyncrl replay runs/x" in _order_line(tmp_path, Path("runs/x"))
    (tmp_path / "order").unlink()
    assert "runs/x/order was removed; asyncrl replay needs it" in _order_line(
        tmp_path, Path("runs/x")
    )
