"""Records come back unchanged, up to the first that is incomplete or damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from asyncrl.checkpoint.record_file import RecordFile, read_records
from asyncrl.core.errors import CheckpointError

ARRAY = np.arange(6, dtype=np.int16).reshape(2, 3)


def written(path: Path, count: int = 3) -> list[int]:
    """Write some records; return where each begins, and where the file ends."""
    with RecordFile(path) as file:
        places = [file.nbytes]
        for number in range(count):
            file.append(number, b"ab", ARRAY, b"")
            places.append(file.nbytes)
    return places


def test_records_come_back_in_order_with_their_places(tmp_path: Path) -> None:
    places = written(tmp_path / "file")
    records = list(read_records(tmp_path / "file"))
    assert [record.kind for record in records] == [0, 1, 2]
    assert [record.at for record in records] == places[:-1]
    assert {record.payload for record in records} == {b"ab" + ARRAY.tobytes()}
    assert (tmp_path / "file").stat().st_size == places[-1]
    assert (tmp_path / "file").stat().st_mode & 0o077 == 0


def test_flushed_records_are_there_while_the_file_is_open(tmp_path: Path) -> None:
    with RecordFile(tmp_path / "file") as file:
        file.append(7, b"")
        file.flush()
        assert [record.kind for record in read_records(tmp_path / "file")] == [7]


def test_file_cut_anywhere_gives_its_whole_records(tmp_path: Path) -> None:
    places = written(tmp_path / "file")
    whole = (tmp_path / "file").read_bytes()
    for size in range(places[0], len(whole) + 1):
        (tmp_path / "cut").write_bytes(whole[:size])
        expected = sum(place <= size for place in places[1:])
        assert len(list(read_records(tmp_path / "cut"))) == expected, size


def test_any_changed_byte_is_found_in_its_record(tmp_path: Path) -> None:
    places = written(tmp_path / "file")
    whole = (tmp_path / "file").read_bytes()
    for at in range(places[0], len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1
        (tmp_path / "changed").write_bytes(changed)
        number = sum(place <= at for place in places) - 1
        read = []
        with pytest.raises(CheckpointError, match=f"record {number}, .* byte {places[number]},"):
            read.extend(read_records(tmp_path / "changed"))


@pytest.mark.parametrize("content", [b"", b"something else"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a file of records"):
        list(read_records(tmp_path / "file"))
