"""Files that an incarnation leaves behind are read as far as they are valid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncrl.fleet.local_files import LogReader


def line(words: str) -> bytes:
    return json.dumps([30, "an.actor", words]).encode() + b"\n"


@pytest.mark.fault("F17")
def test_line_that_a_full_disk_cut_short_costs_itself_and_the_one_behind_it(tmp_path: Path) -> None:
    log = tmp_path / "0-0.log"
    cut = line("cut short")[:-9]
    log.write_bytes(line("before") + cut + line("glued to it") + line("after"))
    reader = LogReader(log)
    assert [words for _, _, words in reader.read()] == ["before", "after"]
    assert reader.read() == []
