"""Records as lines of a CSV file, for spreadsheets and for tools that read tables."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from asyncrl.core.recorder import Record


class CsvRecorder:
    """Appends each record to a file as one line; the first line names the columns.

    A record lacks some metrics, such as those of evaluations: its fields there are empty. When a
    metric is recorded for the first time, the file is written again with one more column, under
    another name that then replaces it. An existing file is continued; when a run is resumed,
    records later than its checkpoint are removed.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path).absolute()  # the working directory may change
        self._names: list[str] = []
        self._file: TextIO | None = None
        self._at: Record | None = None

    def resume_at(self, *, env_steps: int, opt_steps: int) -> None:
        self._at = {"env_steps": env_steps, "opt_steps": opt_steps}

    def start(self, config: Mapping[str, object]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        rows = [row for row in self._rows() if not _is_later(row, self._at)]
        self._names = list(dict.fromkeys(name for row in rows for name in row))
        self._rewrite(rows)

    def write(self, record: Record) -> None:
        if self._file is None:
            raise ValueError(
                f"{self._path} is not open: write was called before start or after close"
            )
        if new := [name for name in record if name not in self._names]:
            rows = list(self._rows())
            self._names += new
            self._rewrite(rows)
        self._writer(self._file).writerow({n: repr(float(v)) for n, v in record.items()})
        self._file.flush()

    def close(self, *, failed: bool) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rows(self) -> Iterator[dict[str, str]]:
        if not self._path.exists():
            return
        with self._path.open(newline="", encoding="utf-8") as file:
            # A line that a crash has cut off has no end, or lacks fields if more was appended.
            for row in csv.DictReader(line for line in file if line.endswith("\n")):
                if None not in row.values() and None not in row:
                    yield row

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        self.close(failed=False)
        draft = self._path.with_name(f".{self._path.name}")
        self._file = draft.open("w", newline="", encoding="utf-8")
        writer = self._writer(self._file)
        if self._names:
            writer.writeheader()
        writer.writerows(rows)
        self._file.flush()
        os.replace(draft, self._path)  # noqa: PTH105  # the open file stays the same

    def _writer(self, file: TextIO) -> csv.DictWriter[str]:
        return csv.DictWriter(file, self._names, lineterminator="\n")


def _is_later(row: Mapping[str, str], at: Record | None) -> bool:
    return at is not None and any(float(row.get(n) or 0) > limit for n, limit in at.items())
