"""Saves and loads named arrays, so that a crash at any moment leaves a complete checkpoint.

A checkpoint `NAME` is a folder of `<group>.safetensors` files and a `manifest.json` with their
sizes and hashes. The folder itself is hidden, `.asyncrl-...`. `NAME` is a symbolic link to it. The
link is switched only when all data has reached the disk, and the old data is deleted only after
that. A hidden folder without a link is left over from a crash; the next save deletes it.

One run at a time writes to a directory, under its lock; any number may read. Other files may be
there, too. Nothing is ever unpickled. Does not know what the arrays are.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.checkpoint.array_file import (
    Digest,
    check_finite,
    digest_of,
    map_arrays,
    read_arrays,
    write_file,
    write_group,
)
from asyncrl.checkpoint.directory import DirectoryLock, make_directory, sync
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.types import Arrays, Params

MANIFEST = "manifest.json"
"""Its file."""

PASSING = "passing"
"""Name of a plain value: the next numbered checkpoint replaces this one."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)
"""Valid names of checkpoints and files. They cannot lead to another directory."""

_FORMAT = 1


def pack_manifest(meta: Mapping[str, Any], files: Mapping[str, Any]) -> bytes:
    """Return a manifest. Equal content gives equal text, and it has its own hash against damage."""
    content = {"format": _FORMAT, "meta": dict(meta), "files": files}
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        _refuse_misfit("meta", meta)
        raise CheckpointError(f"cannot save meta: {error}") from error
    content["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps(content, sort_keys=True, indent=1).encode()


def read_manifest(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the plain values and the files' digests; raise `CheckpointError` if damaged."""
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
            f"{path.name} is damaged, or not a manifest: {type(error).__name__}: {error}"
        ) from error
    if not whole:
        raise CheckpointError(f"{path.name} is damaged: its hash does not match its content")
    return meta, files


def _refuse_misfit(name: str, value: Any) -> None:  # noqa: ANN401
    """Raise `CheckpointError` naming the first value that JSON cannot represent."""
    inner = value if isinstance(value, Mapping) else dict(enumerate(value))
    for key, item in inner.items():
        if isinstance(item, Mapping | list | tuple):
            _refuse_misfit(f"{name}.{key}", item)
            continue
        try:
            json.dumps(item, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"cannot save {name}.{key}={item!r:.80}: {error}") from error


logger = logging.getLogger(__name__)

_SUFFIX = ".safetensors"
_HIDDEN = ".asyncrl-"
_OURS = re.compile(r"\.asyncrl-[a-z0-9_]{8}(\.link)?", re.ASCII)
"""Names that a save creates, finished or not."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The arrays and values that were passed to `Checkpointer.save`."""

    groups: Mapping[str, Params]
    meta: Mapping[str, Any]
    path: Path = Path()
    """Where it was loaded from."""

    def group(self, name: str) -> Params:
        """Return a group of arrays; raise if it is missing."""
        if name not in self.groups:
            held = ", ".join(sorted(self.groups)) or "nothing"
            raise CheckpointError(f"it should contain {name}, but contains {held}")
        return self.groups[name]

    def number(self, name: str) -> float:
        """Return a number of `meta`; raise if it is missing. Dots separate nested names."""
        return float(self._plain(name, "a number", lambda v: type(v) in {int, float}))

    def count(self, name: str) -> int:
        """Return a whole number of `meta` that is not negative; raise if it is missing."""
        return int(self._plain(name, "a count", lambda v: type(v) is int and v >= 0))

    @contextmanager
    def naming(self, purpose: str, advice: str) -> Iterator[None]:
        """Add to errors about the content which checkpoint it is, and what to do."""
        try:
            yield
        except (CheckpointError, ConfigError) as error:
            raise CheckpointError(
                f"cannot {purpose} checkpoint {self.path}: {error}. {advice}"
            ) from error

    def _plain(self, name: str, what: str, fits: Callable[[Any], bool]) -> Any:  # noqa: ANN401
        value: Any = self.meta
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if not fits(value):
            said = "does not" if value is None else f"says {str(value)[:80]!r}"
            raise CheckpointError(f"its manifest should contain {name}, {what}, but {said}")
        return value


class Checkpointer:
    """Saves and loads the checkpoints of one run.

    Args:
        directory: Where they go; created by the first save.
        keep_last: Number of numbered checkpoints to keep; 0 keeps all. Checkpoints with other names
            are never deleted.
    """

    def __init__(self, directory: Path, keep_last: int = 0) -> None:
        if keep_last < 0:
            raise ConfigError(f"keep_last must be 0 (keep all) or more, got {keep_last}")
        self._directory = directory
        self._keep_last = keep_last
        self._lock: DirectoryLock | None = None
        self._found: os.stat_result | None = None
        """The directory when it was locked."""
        self._passing: str | None = None
        """The checkpoint that the next one replaces."""

    def lock(self) -> None:
        """Prevent other runs from writing here, until `unlock`.

        Raises `ConfigError` if another run has the lock, or if checkpoints cannot be saved here.
        """
        if self._lock:
            return
        self._lock = DirectoryLock(self._directory)
        try:
            self._found = self._directory.stat()
            _try_link(self._directory)
        except ConfigError:
            self.unlock()
            raise

    def unlock(self) -> None:
        """Allow other runs to write here; may be called again."""
        if self._lock:
            self._lock.release()
            self._lock = None

    def save(self, name: str, groups: Mapping[str, Arrays], meta: Mapping[str, Any]) -> Path:
        """Save under `name`, a number of optimisation steps or a word such as `best`.

        The next numbered checkpoint replaces one whose `meta` contains `PASSING`.

        If this raises, earlier checkpoints, including one of the same name, are still complete.
        Takes the lock for the call if it is not held. A directory that was removed or renamed since
        it was locked is created again.
        """
        path = self._directory / _checked("checkpoint", name)
        files = {_checked("group", group) + _SUFFIX: groups[group] for group in groups}
        for group, params in groups.items():
            if isinstance(params, Mapping):
                check_finite(group, params)
        pack_manifest(meta, {})  # refuse unsupported values before anything is written
        try:
            with self._locked():
                self._sweep()
                is_new = name == self._passing or not path.exists()
                self._write(files, meta, path)
                self._prune(name, passing=is_new and PASSING in meta)
                self._sweep()
        except (OSError, ConfigError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CheckpointError(
                f"cannot save checkpoint {path}: {reason}; {self._kept()}"
            ) from error
        return path

    def discard(self, name: str) -> None:
        """Delete a checkpoint if it is there. Takes the lock if it is not held."""
        with self._locked(), suppress(FileNotFoundError):
            _remove(self._directory / name)

    def load(self, name: str, *, mapped: Collection[str] = ()) -> Checkpoint:
        """Load a checkpoint if it is complete and undamaged; raise `CheckpointError` otherwise.

        Groups in `mapped` are mapped from their files: their arrays are read-only, and take memory
        only as they are read.
        """
        path = self._directory / _checked("checkpoint", name)
        if name not in self.names():
            raise CheckpointError(f"there is no checkpoint {path}; {self._others(name)}")
        while True:
            data = _behind(path)
            try:
                return _read(data, mapped, path)
            except (OSError, CheckpointError) as error:
                if _behind(path) != data:
                    continue  # a newer one replaced it while it was being read
                raise CheckpointError(
                    f"cannot load checkpoint {path}: {error}; {self._others(name)}"
                ) from error

    def load_latest(self, *, mapped: Collection[str] = ()) -> Checkpoint:
        """Load the highest-numbered complete checkpoint; warn about incomplete ones."""
        newest = " its run has saved none; start a new run"
        numbered = self._numbered()
        for name in reversed(numbered):
            try:
                return self.load(name, mapped=mapped)
            except CheckpointError as error:
                logger.warning("%s; falling back to the previous one", error)
                newest = f" {error}" if name == numbered[-1] else newest
        if self._numbered()[-1:] != numbered[-1:]:
            return self.load_latest(mapped=mapped)  # newer ones replaced them meanwhile
        raise CheckpointError(
            f"{self._directory} contains no complete numbered checkpoint to resume from:{newest}"
        )

    def latest(self) -> str | None:
        """Return the highest-numbered name, complete or not."""
        return next(reversed(self._numbered()), None)

    def names(self) -> list[str]:
        """Return the names of all checkpoints, complete or not: numbers in order, then words."""
        if not self._directory.is_dir():
            return []
        found = [
            path.name
            for path in self._directory.iterdir()
            if NAME.fullmatch(path.name) and (path.is_symlink() or (path / MANIFEST).is_file())
        ]
        return sorted(found, key=lambda name: (not _NUMBER.fullmatch(name), len(name), name))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._lock:
            self._keep_lock(self._lock)
            yield
            return
        lock = DirectoryLock(self._directory)
        try:
            yield
        finally:
            lock.release()

    def _keep_lock(self, lock: DirectoryLock) -> None:
        """Take the lock again if its file is gone; create the directory again if it is gone."""
        if lock.is_there:
            return
        make_directory(self._directory.parent)  # as for a new run: for its user only
        with ExitStack() as undo:
            again = DirectoryLock(self._directory)
            undo.callback(again.release)
            found = self._directory.stat()
            is_new = self._found is None or not os.path.samestat(found, self._found)
            if is_new and self.names():
                raise ConfigError("its directory was replaced by that of another run")
            undo.pop_all()
        lock.abandon()
        self._lock, self._found = again, found
        if is_new:
            logger.warning(
                "%s was removed or renamed, and is created again; earlier checkpoints, and the "
                "best model if there was one, are not in it",
                self._directory,
            )

    def _kept(self) -> str:
        """Describe which checkpoints are left after a failed save."""
        try:
            names = self.names()
        except OSError as error:
            return f"earlier checkpoints cannot be read: {error.strerror}"
        if not names:
            return "there is no other checkpoint"
        return "earlier checkpoints are unchanged"

    def _numbered(self) -> list[str]:
        return [name for name in self.names() if _NUMBER.fullmatch(name)]

    def _others(self, name: str) -> str:
        others = [other for other in self.names() if other != name]
        return f"also there: {', '.join(others)}" if others else "no other one is there"

    def _write(self, files: Mapping[str, Arrays], meta: Mapping[str, Any], path: Path) -> None:
        data = Path(tempfile.mkdtemp(prefix=_HIDDEN, dir=self._directory))
        try:
            # Streams first: the sooner they are read, the fewer overwritten rows are kept for them.
            order = sorted(files, key=lambda name: isinstance(files[name], Mapping))
            digests = {name: write_group(data / name, files[name]) for name in order}
            write_file(data / MANIFEST, iter([pack_manifest(meta, digests)]))
            sync(data)
            link = data.with_name(f"{data.name}.link")
            link.symlink_to(data.name)
            if path.is_dir() and not path.is_symlink():
                # A run was copied without its links. A rename cannot replace a folder, so it gets
                # another name under which it can still be loaded.
                path.rename(path.with_name(f"{path.name}.old-{data.name.removeprefix(_HIDDEN)}"))
            link.replace(path)
        except (OSError, CheckpointError):
            if data.name not in self._linked():
                shutil.rmtree(data, ignore_errors=True)
            raise

    def _prune(self, saved: str, *, passing: bool) -> None:
        kept = numbered = self._numbered()
        if saved in numbered:
            kept = [name for name in numbered if name == saved or name != self._passing]
            self._passing = saved if passing else None
        kept = [saved, *kept[-self._keep_last :]]
        if surplus := [name for name in numbered if name not in kept]:
            sync(self._directory)
        for name in surplus:
            _remove(self._directory / name)

    def _sweep(self) -> None:
        """Delete folders without a link, once no crash can restore an old link."""
        sync(self._directory)
        linked = self._linked()
        for path in list(self._directory.iterdir()):
            if _OURS.fullmatch(path.name) and path.name not in linked:
                _remove(path)

    def _linked(self) -> set[str]:
        return {
            path.readlink().name
            for path in self._directory.iterdir()
            if path.is_symlink() and not _OURS.fullmatch(path.name)
        }


def _checked(what: str, name: str) -> str:
    if not NAME.fullmatch(name):
        raise CheckpointError(
            f"the name of a {what} must have up to 100 letters, digits, '_', '-' and '.', and must "
            f"not begin with '-' or '.', got {name!r}"
        )
    return name


def _behind(path: Path) -> Path:
    """Return the target of a link; unlike `Path.resolve`, also of a link to itself."""
    return Path(os.path.realpath(path))


def _read(data: Path, mapped: Collection[str], path: Path) -> Checkpoint:
    meta, files = read_manifest(data / MANIFEST)
    for name, digest in files.items():
        _verify(data / name, digest)
    groups = {}
    for name in files:
        group = name.removesuffix(_SUFFIX)
        groups[group] = (map_arrays if group in mapped else read_arrays)(data / name)
    return Checkpoint(groups, meta, path)


def _verify(path: Path, digest: Digest) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path.name} is missing")
    size, expected = path.stat().st_size, digest["size"]
    if size != expected:
        raise CheckpointError(f"{path.name} has {size} bytes, but {expected} were saved")
    if digest_of(path) != digest:
        raise CheckpointError(f"{path.name} is damaged: its sha256 has changed")


def _try_link(directory: Path) -> None:
    """Create a link, as each save does, and remove it."""
    link = directory / f"{_HIDDEN}linkable.link"
    try:
        link.unlink(missing_ok=True)
        link.symlink_to("nothing")
        link.unlink()
    except OSError as error:
        raise ConfigError(
            f"{directory} does not support symbolic links, which checkpoints need: "
            f"{error.strerror}; use a directory on another disk"
        ) from error


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()
