"""Arrays come back from a file as they were, and other readers of the format can read it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from asyncrl.array_file import (
    digest_of,
    let_go,
    map_arrays,
    read_arrays,
    write_arrays,
    write_file,
)
from asyncrl.errors import CheckpointError

NAMES = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64".split()
ANY_ARRAY = st.sampled_from(NAMES).flatmap(
    lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)


@given(st.dictionaries(st.text(min_size=1, max_size=5), ANY_ARRAY, max_size=5))
@settings(max_examples=50, deadline=None)
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


def test_large_arrays_are_written_piece_by_piece(tmp_path: Path) -> None:
    large = np.arange(5 << 20, dtype=np.int64)
    write_arrays(tmp_path / "large", {"large": large, "strided": large[::1000]})
    found = read_arrays(tmp_path / "large")
    assert np.array_equal(found["large"], large)
    assert np.array_equal(found["strided"], large[::1000])


def test_nothing_is_overwritten_and_only_the_owner_may_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, iter([b"once"]))
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_file(path, iter([b"twice"]))
    assert path.read_bytes() == b"once"


def test_what_is_no_such_file_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "wrong"
    path.write_bytes(b"no arrays in here")
    with pytest.raises(CheckpointError, match="wrong does not hold arrays"):
        read_arrays(path)
    with pytest.raises(CheckpointError, match="wrong does not hold arrays"):
        map_arrays(path)


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
        let_go([*found.values(), found["large"][5:], large])


def test_metadata_of_other_writers_is_no_array(tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    safetensors.numpy.save_file({"a": np.ones(3)}, path, metadata={"format": "np"})
    assert list(map_arrays(path)) == list(read_arrays(path)) == ["a"]


def test_mapped_dtype_that_numpy_lacks_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "half"
    header = b'{"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}}'
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(CheckpointError, match=r"half does not hold arrays.*BF16"):
        map_arrays(path)
