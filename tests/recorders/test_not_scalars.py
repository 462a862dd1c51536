"""Histograms and films, which records of flat numbers hold."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from asyncrl.recorders.not_scalars import Histogram, film_of, with_media


def test_film_is_that_of_the_scored_model(tmp_path: Path) -> None:
    (tmp_path / "20.mp4").touch()
    scored = {"opt_steps": 25.0, "eval/model_version": 20.0}
    assert film_of(scored, tmp_path) == tmp_path / "20.mp4"
    assert film_of({**scored, "eval/model_version": 21.0}, tmp_path) is None
    assert film_of({"opt_steps": 20.0}, tmp_path) is None
    assert film_of(scored, None) is None


def test_client_gets_its_own_histograms_and_videos(tmp_path: Path) -> None:
    film = tmp_path / "20.mp4"
    film.touch()
    client = SimpleNamespace(Histogram=dict, Video=lambda path, **how: (path, how))
    record = {"fps": 7.0, "lag/histogram/0": 3.0, "eval/model_version": 20.0}
    assert with_media(record, tmp_path, client) == {
        "fps": 7.0,
        "eval/model_version": 20.0,
        "lag/histogram": {"np_histogram": Histogram([3.0], [0.0, 1.0])},
        "video": (str(film), {"format": "mp4"}),
    }
