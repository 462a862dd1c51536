"""The manifest of a checkpoint: plain values, and the sizes and hashes of the files beside it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.core.errors import CheckpointError

MANIFEST = "manifest.json"
"""Its file."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)
"""What checkpoints and their files may be called: it leads nowhere else."""

_FORMAT = 1


def pack_manifest(meta: Mapping[str, Any], files: Mapping[str, Any]) -> bytes:
    """Return one text for one content, with its own hash, so that any change to it shows."""
    content = {"format": _FORMAT, "meta": dict(meta), "files": files}
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        _refuse_misfit("meta", meta)
        raise CheckpointError(f"cannot save meta: {error}") from error
    content["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps(content, sort_keys=True, indent=1).encode()


def read_manifest(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the plain values and the files' digests; raise `CheckpointError` on any other text."""
    if not path.is_file():
        raise CheckpointError(f"{path.name} is missing")
    raw = path.read_bytes()
    try:
        content = json.loads(raw)
        if content["format"] != _FORMAT:
            raise CheckpointError(
                f"{path.name} has format {content['format']!r}, but this version of asyncrl reads "
                f"{_FORMAT}; use the version that saved it"
            )
        meta, files = dict(content["meta"]), dict(content["files"])
        whole = pack_manifest(meta, files) == raw and all(
            NAME.fullmatch(name) and digest.keys() == {"size", "sha256"}
            for name, digest in files.items()
        )
    except (AttributeError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path.name} is damaged, or no manifest: {type(error).__name__}: {error}"
        ) from error
    if not whole:
        raise CheckpointError(f"{path.name} is damaged: its content is not what was saved")
    return meta, files


def _refuse_misfit(name: str, value: Any) -> None:  # noqa: ANN401
    """Raise `CheckpointError` that names the first value which JSON has no word for."""
    inner = value if isinstance(value, Mapping) else dict(enumerate(value))
    for key, item in inner.items():
        if isinstance(item, Mapping | list | tuple):
            _refuse_misfit(f"{name}.{key}", item)
            continue
        try:
            json.dumps(item, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"cannot save {name}.{key}={item!r:.80}: {error}") from error
