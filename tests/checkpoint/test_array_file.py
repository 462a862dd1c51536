"""Arrays come back from a file unchanged, and other readers of the format can read it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from asyncrl.checkpoint.array_file import (
    collected,
    digest_of,
    evict,
    map_arrays,
    read_arrays,
    write_arrays,
    write_stream,
)
from asyncrl.core.errors import CheckpointError
from asyncrl.core.types import Array, Params

NAMES = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64".split()
ANY_ARRAY = st.sampled_from(NAMES).flatmap(
    lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)


@given(st.dictionaries(st.text(min_size=1, max_size=5), ANY_ARRAY, max_size=5))
@settings(max_examples=20, deadline=None)
def test_arrays_come_back(
    tmp_path_factory: pytest.TempPathFactory, given_: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("arrays") / "some.safetensors"
    written = {name: np.asarray(value) for name, value in given_.items()}
    digest = write_arrays(path, written)
    raw = path.read_bytes()
    assert digest == {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    assert digest == digest_of(path)
    for found in (read_arrays(path), map_arrays(path), safetensors.numpy.load(raw)):
        assert found.keys() == written.keys()
        for name, value in written.items():
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
            assert found[name].tobytes() == value.tobytes()


class Pieces:
    """A stream of arrays that are there all the time."""

    def __init__(self, in_pieces: Params, others: Params, step: int, first: int = 0) -> None:
        self._in_pieces, self._others, self._step, self._first = in_pieces, others, step, first
        self.shapes = {n: (array.shape, array.dtype.name) for n, array in in_pieces.items()}
        self.closed = False

    def pieces(self) -> Iterator[tuple[int, Params]]:
        n_rows = max((len(array) for array in self._in_pieces.values()), default=0)
        for begin, end in ((self._first, n_rows), (0, self._first)):
            for at in range(begin, end, self._step):
                part = slice(at, min(at + self._step, end))
                yield at, {name: array[part] for name, array in self._in_pieces.items()}

    def rest(self) -> Params:
        return self._others

    def close(self) -> None:
        self.closed = True


@given(
    st.integers(0, 5).flatmap(
        lambda n_rows: st.dictionaries(
            st.text(min_size=1, max_size=5),
            st.sampled_from(NAMES).flatmap(
                lambda dtype: array_shapes(max_dims=2, min_side=0, max_side=3).flatmap(
                    lambda shape: arrays(dtype, (n_rows, *shape))
                )
            ),
            max_size=4,
        )
    ),
    st.dictionaries(st.text(min_size=6, max_size=7), ANY_ARRAY, max_size=4),
    st.integers(1, 3),
    st.integers(0, 5),
)
@settings(max_examples=20, deadline=None)
def test_streams_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    in_pieces: dict[str, Array],
    others: dict[str, Array],
    step: int,
    first: int,
) -> None:
    path = tmp_path_factory.mktemp("streams") / "some.safetensors"
    n_rows = max((len(array) for array in in_pieces.values()), default=0)
    stream = Pieces(in_pieces, others, step, min(first, n_rows))
    digest = write_stream(path, stream)
    raw = path.read_bytes()
    assert digest == {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    assert not stream.closed, "its owner closes it"
    memory = collected(stream)
    assert stream.closed
    for found in (read_arrays(path), map_arrays(path), safetensors.numpy.load(raw), memory):
        assert found.keys() == in_pieces.keys() | others.keys()
        for name, value in (in_pieces | others).items():
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
            assert found[name].tobytes() == value.tobytes()


def test_mapped_arrays_are_read_only_and_outlive_their_file(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    large = np.arange(1 << 20)
    write_arrays(path, {"large": large, "scalar": np.array(3.5), "none": np.zeros((0, 2))})
    found = map_arrays(path)
    with pytest.raises(ValueError, match="read-only"):
        found["large"][0] = 1
    path.unlink()
    for _ in range(2):
        assert np.array_equal(found["large"], large), "what was let go comes back"
        assert found["scalar"] == 3.5
        evict([*found.values(), found["large"][5:], large])


def test_what_is_no_such_file_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "wrong"
    path.write_bytes(b"no arrays in here")
    with pytest.raises(CheckpointError, match="wrong does not contain arrays"):
        read_arrays(path)
    with pytest.raises(CheckpointError, match="wrong does not contain arrays"):
        map_arrays(path)
