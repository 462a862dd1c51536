"""What a life leaves behind is read for as much as it is worth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncrl.launchers._lives import LifeFiles


def line(words: str) -> bytes:
    return json.dumps([30, "an.actor", words]).encode() + b"\n"


@pytest.mark.fault("F17")
def test_line_that_a_full_disk_cut_short_costs_itself_and_the_one_behind_it(tmp_path: Path) -> None:
    files = LifeFiles(tmp_path, "0-0")
    cut = line("cut short")[:-9]
    files.path("log").write_bytes(line("before") + cut + line("glued to it") + line("after"))
    lines, end = files.read_log(0)
    assert [words for _, _, words in lines] == ["before", "after"]
    assert files.read_log(end) == ([], end)
