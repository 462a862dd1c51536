"""What a record holds besides single numbers: histograms, and that a film exists.

Records are flat numbers. The bins of a histogram are numbers of one name, followed by the lower
bound of each: `lag/histogram/8`. The film of a model is a file named by its optimisation steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from asyncrl.core.evaluator import film_path
from asyncrl.core.recorder import Record

_NAME = "lag/histogram"
_BINS = f"{_NAME}/"


class Histogram(NamedTuple):
    """Counts between neighbouring edges, of which there is one more."""

    counts: list[float]
    edges: list[float]


def split(record: Record) -> tuple[Record, Mapping[str, Histogram]]:
    """Return the scalars of a record, and its histograms by name: `lag/histogram`."""
    bins: dict[str, dict[float, float]] = {}
    scalars = {}
    for name, value in record.items():
        if name.startswith(_BINS):
            bins.setdefault(_NAME, {})[float(name.removeprefix(_BINS))] = value
        else:
            scalars[name] = value
    return scalars, {name: _histogram(counts) for name, counts in bins.items()}


def _histogram(bins: Mapping[float, float]) -> Histogram:
    """Fill the empty bins, whose bounds are 0 and the powers of two."""
    edges, counts = [0.0, 1.0], [bins.get(0.0, 0.0)]
    while edges[-1] <= max(bins):
        counts.append(bins.get(edges[-1], 0.0))
        edges.append(2 * edges[-1])
    return Histogram(counts, edges)


def film_of(record: Record, directory: Path | None) -> Path | None:
    """Return the film of the model that a record scores, if it was filmed."""
    version = record.get("eval/model_version")
    if directory is None or version is None:
        return None
    path = film_path(directory, int(version))
    return path if path.is_file() else None


def with_media(
    record: Record,
    videos: Path | None,
    client: Any,  # a module
) -> dict[str, Any]:
    """Return a record with the histograms and the video of a client that has classes of W&B."""
    scalars, histograms = split(record)
    values: dict[str, Any] = dict(scalars)
    for name, histogram in histograms.items():
        values[name] = client.Histogram(np_histogram=histogram)
    if film := film_of(record, videos):
        values["video"] = client.Video(str(film), format="mp4")
    return values
