"""Bytes that would run code, for wherever bytes are read.

Canaries are pickles, arrays that hold pickles, Python source and YAML tags; each
makes a directory if a reader unpickles, loads or evaluates it. They stand in every field and every
frame of every message, in all files of a checkpoint (with the hashes that belong to them), in an
exported policy and in a file of settings.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgpack
import numpy as np
import yaml

from asyncrl.checkpoint.array_file import read_arrays
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.export import policy_numpy
from asyncrl.learner.config import RateLimiterConfig
from asyncrl.run.yaml_file import load_yaml
from tests.support.hostile_messages import MESSAGES
from tests.support.traced_saves import groups


@dataclass(frozen=True, slots=True)
class Canary:
    """Bytes that make a directory if they are executed as an attacker intends."""

    kind: str
    data: bytes
    sing: Callable[[], object]


class _Calls:
    """Pickled, it is a call of a function that makes a directory."""

    def __init__(self, function: Callable[..., object], *arguments: str) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
        return self.call


def canaries(mark: Path) -> list[Canary]:
    """Return bytes that leave a mark if anybody unpickles or evaluates them."""
    command = f"import os; os.mkdir({str(mark)!r})"
    calls = {
        "mkdir": _Calls(os.mkdir, str(mark)),
        "exec": _Calls(exec, command),
        "eval": _Calls(eval, f"__import__('os').mkdir({str(mark)!r})"),
    }
    found: list[Canary] = []
    for name, call in calls.items():
        for protocol in (0, 2, pickle.HIGHEST_PROTOCOL):
            data = pickle.dumps(call, protocol)
            found.append(Canary(f"pickle {protocol} of {name}", data, _unpickling(data)))
        file = io.BytesIO()
        np.save(file, np.array([call], object), allow_pickle=True)
        found.append(Canary(f"array of {name}", file.getvalue(), _loading(file.getvalue())))
    tag = f"!!python/object/apply:os.mkdir [{json.dumps(str(mark))}]"
    found.append(Canary("source", command.encode(), lambda: exec(command)))  # ours
    found.append(Canary("yaml", tag.encode(), lambda: yaml.unsafe_load(tag)))
    return found


def in_every_place(canary: bytes) -> Iterator[list[bytes]]:
    """Yield every message with a canary in place of each field and frame, in each of its forms."""
    text = canary.decode("latin1")
    forms = [canary, text, [canary], {text: 1.0}, {"a": canary}, msgpack.ExtType(1, canary)]
    forms.append([[text, "object", 1]])
    for frames in MESSAGES:
        for at in range(len(frames)):
            yield [*frames[:at], canary, *frames[at + 1 :]]
        yield [*frames, canary]
        fields = msgpack.unpackb(frames[0])
        for at in range(len(fields) + 1):
            for form in forms:
                changed = [*fields[:at], form, *fields[at + 1 :]]
                yield [msgpack.packb(changed), *frames[1:]]


def _unpickling(data: bytes) -> Callable[[], object]:
    return lambda: pickle.loads(data)  # ours


def _loading(data: bytes) -> Callable[[], object]:
    return lambda: np.load(io.BytesIO(data), allow_pickle=True)


def loaders_of(directory: Path, canary: bytes) -> Iterator[Callable[[], None]]:
    """Yield what reads a canary, which each time stands somewhere else; what refuses is silent."""
    directory.mkdir(exist_ok=True)
    path = directory / "canary"
    path.write_bytes(canary)
    yield lambda: _reads(lambda: read_arrays(path))
    yield lambda: _reads(lambda: load_yaml(RateLimiterConfig, path))
    yield lambda: _reads(lambda: policy_numpy.Policy(path))
    path.write_bytes(b"hidden: " + canary)
    yield lambda: _reads(lambda: load_yaml(RateLimiterConfig, path))
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("description.npy", "weight.npy"):
            archive.writestr(name, canary)
    yield lambda: _reads(lambda: policy_numpy.Policy(path))
    for file in ("agent.safetensors", "model.safetensors", "manifest.json"):
        yield partial(_reads_checkpoint, directory, file, canary)


def _reads(load: Callable[[], object]) -> None:
    """Load; what refuses may do so in its own words."""
    with suppress(CheckpointError, ConfigError, ValueError, AttributeError):
        load()


def _reads_checkpoint(directory: Path, file: str, canary: bytes) -> None:
    """Load a checkpoint that has a canary in one file, and the hashes that belong to it."""
    text = canary.decode("latin1")
    checkpointer = Checkpointer(directory / "run")
    saved = checkpointer.save("1", groups(1), {"config": {text: text}, "note": [text]})
    manifest = saved / "manifest.json"
    if file == manifest.name:
        manifest.write_bytes(canary)
    else:
        (saved / file).write_bytes(canary)
        content = json.loads(manifest.read_bytes())
        digest = {"size": len(canary), "sha256": hashlib.sha256(canary).hexdigest()}
        content["files"][file] = digest
        del content["sha256"]
        whole = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        manifest.write_bytes(
            json.dumps({**content, "sha256": whole}, sort_keys=True, indent=1).encode()
        )
    _reads(lambda: checkpointer.load("1"))
