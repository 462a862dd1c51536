"""A manifest comes back unchanged, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncrl.checkpoint.checkpoint import NAME, Checkpointer, pack_manifest, read_manifest
from asyncrl.core.errors import CheckpointError

META = {"opt_steps": 7, "score": 0.1, "none": None, "deep": {"list": [1, "ü"]}}
FILES = {"model.safetensors": {"size": 1, "sha256": "00"}}
FORGED = [pack_manifest({}, files) for files in ({"../x": {"size": 1, "sha256": ""}}, {"x": 1})]


def test_values_and_digests_come_back(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(pack_manifest(META, FILES))
    assert read_manifest(path) == (META, FILES)


def test_order_of_values_does_not_matter() -> None:
    assert pack_manifest({"a": 1, "b": 2}, FILES) == pack_manifest({"b": 2, "a": 1}, FILES)


@pytest.mark.parametrize("name", ["", ".x", "-x", "a/b", "a\n", "ü", "x" * 101])
def test_names_lead_nowhere_else(name: str) -> None:
    assert not NAME.fullmatch(name)
    assert NAME.fullmatch("a-1_B.safetensors")


@pytest.mark.fault("F20")
@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"[" * 100_000, b"\xff", *FORGED])
def test_manifest_of_any_other_kind_is_a_sentence(tmp_path: Path, raw: bytes) -> None:
    path = Checkpointer(tmp_path).save("1", {}, {})
    (path / "manifest.json").write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        Checkpointer(tmp_path).load("1")


@pytest.mark.fault("F37")
def test_format_of_the_future_is_named(tmp_path: Path) -> None:
    manifest = Checkpointer(tmp_path).save("1", {}, {}) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 2}))
    with pytest.raises(CheckpointError, match="format 2, but this version of asyncrl reads 1"):
        Checkpointer(tmp_path).load("1")
