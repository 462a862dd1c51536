"""Saving and loading named arrays on disk, so that a crash at any moment leaves a whole checkpoint.

A checkpoint `NAME` is a folder of `<group>.safetensors` files and a `manifest.json` with their
sizes and hashes. The folder itself is hidden, `.asyncrl-...`; `NAME` is a symbolic link to it,
which is switched only when all the data has reached the disk, and the old data is deleted only
after that. What no link points to is left over from a crash, and is deleted by the next save.

One writes to a directory at a time, under its lock; any number may read. Files of other kinds may
lie there, too. Nothing is ever unpickled.
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
from contextlib import ExitStack, contextmanager
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


logger = logging.getLogger(__name__)

_SUFFIX = ".safetensors"
_HIDDEN = ".asyncrl-"
_OURS = re.compile(r"\.asyncrl-[a-z0-9_]{8}(\.link)?", re.ASCII)
"""What a save has made, well or not."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was given to `Checkpointer.save`."""

    groups: Mapping[str, Params]
    meta: Mapping[str, Any]
    path: Path = Path()
    """Where it was loaded from."""

    def group(self, name: str) -> Params:
        """Return arrays that must be there."""
        if name not in self.groups:
            held = ", ".join(sorted(self.groups)) or "nothing"
            raise CheckpointError(f"it should hold {name}, and holds {held}")
        return self.groups[name]

    def number(self, name: str) -> float:
        """Return a number of `meta` that must be there; dots lead into what is inside."""
        return float(self._plain(name, "a number", lambda v: type(v) in {int, float}))

    def count(self, name: str) -> int:
        """Return a whole number of `meta` that must be there, and not negative."""
        return int(self._plain(name, "a count", lambda v: type(v) is int and v >= 0))

    @contextmanager
    def naming(self, purpose: str, advice: str) -> Iterator[None]:
        """Have errors about what it holds tell which one it was, and what to do."""
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
            raise CheckpointError(f"its manifest should say {name}, {what}, and {said}")
        return value


class Checkpointer:
    """Saves and loads the checkpoints of one run.

    Args:
        directory: Where they go; made by the first save.
        keep_last: How many numbered checkpoints to keep; 0 keeps all. Others are never deleted.
    """

    def __init__(self, directory: Path, keep_last: int = 0) -> None:
        if keep_last < 0:
            raise ConfigError(f"keep_last must be 0 (keep all) or more, got {keep_last}")
        self._directory = directory
        self._keep_last = keep_last
        self._lock: DirectoryLock | None = None
        self._found: os.stat_result | None = None
        """The directory, when it was locked."""

    def lock(self) -> None:
        """Keep other runs from writing here, until `unlock`.

        Raises `ConfigError` if one does, or if no checkpoint can be saved here.
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
        """Let others write here; may be called again."""
        if self._lock:
            self._lock.release()
            self._lock = None

    def save(self, name: str, groups: Mapping[str, Arrays], meta: Mapping[str, Any]) -> Path:
        """Save under `name`, a number of optimisation steps or a word such as `best`.

        If this raises, what was saved before, also under the same name, is still whole. Takes the
        lock meanwhile, if it is not held. A directory that was removed or renamed since it was
        locked is made again.
        """
        path = self._directory / _checked("checkpoint", name)
        files = {_checked("group", group) + _SUFFIX: groups[group] for group in groups}
        for group, params in groups.items():
            if isinstance(params, Mapping):
                check_finite(group, params)
        pack_manifest(meta, {})  # what cannot be saved is refused before anything is written
        try:
            with self._locked():
                self._sweep()
                self._write(files, meta, path)
                self._prune(name)
                self._sweep()
        except (OSError, ConfigError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CheckpointError(
                f"cannot save checkpoint {path}: {reason}; {self._kept()}"
            ) from error
        return path

    def load(self, name: str, *, mapped: Collection[str] = ()) -> Checkpoint:
        """Load a checkpoint if all of it is as it was saved; raise `CheckpointError` otherwise.

        Groups that are to be `mapped` stay in their files: their arrays are read-only, and in
        memory only as far as they are being read.
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
                    continue  # a newer one took its place while it was being read
                raise CheckpointError(
                    f"cannot load checkpoint {path}: {error}; {self._others(name)}"
                ) from error

    def load_latest(self, *, mapped: Collection[str] = ()) -> Checkpoint:
        """Load the highest-numbered checkpoint that is whole, and warn of those that are not."""
        newest = " its run has saved none; begin a new one"
        numbered = self._numbered()
        for name in reversed(numbered):
            try:
                return self.load(name, mapped=mapped)
            except CheckpointError as error:
                logger.warning("%s; going back to the one before", error)
                newest = f" {error}" if name == numbered[-1] else newest
        if self._numbered()[-1:] != numbered[-1:]:
            return self.load_latest(mapped=mapped)  # a newer one took their place meanwhile
        raise CheckpointError(
            f"{self._directory} holds no whole numbered checkpoint to go on from:{newest}"
        )

    def latest(self) -> str | None:
        """Return the highest-numbered name, whole or not."""
        return next(reversed(self._numbered()), None)

    def names(self) -> list[str]:
        """Return the names of all checkpoints, whole or not: numbers in order, then words."""
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
        """Take the lock again if its file is gone, and make the directory again if it is gone."""
        if lock.is_there:
            return
        make_directory(self._directory.parent)  # of a run: for its user alone, too
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
                "%s was removed or renamed, and is made again; checkpoints that were saved before, "
                "and the best model if there was one, are not in it",
                self._directory,
            )

    def _kept(self) -> str:
        """Say what is left where a save has failed."""
        try:
            names = self.names()
        except OSError as error:
            return f"what was saved before cannot be read: {error.strerror}"
        if not names:
            return "no other checkpoint is there"
        return "checkpoints that were saved before are untouched"

    def _numbered(self) -> list[str]:
        return [name for name in self.names() if _NUMBER.fullmatch(name)]

    def _others(self, name: str) -> str:
        others = [other for other in self.names() if other != name]
        return f"also there: {', '.join(others)}" if others else "no other one is there"

    def _write(self, files: Mapping[str, Arrays], meta: Mapping[str, Any], path: Path) -> None:
        data = Path(tempfile.mkdtemp(prefix=_HIDDEN, dir=self._directory))
        try:
            # Streams come first: the sooner they are read, the less is kept for them.
            order = sorted(files, key=lambda name: isinstance(files[name], Mapping))
            digests = {name: write_group(data / name, files[name]) for name in order}
            write_file(data / MANIFEST, iter([pack_manifest(meta, digests)]))
            sync(data)
            link = data.with_name(f"{data.name}.link")
            link.symlink_to(data.name)
            if path.is_dir() and not path.is_symlink():
                # Somebody copied the run without its links. No rename replaces a folder, so it
                # steps aside under a name that can still be loaded.
                path.rename(path.with_name(f"{path.name}.old-{data.name.removeprefix(_HIDDEN)}"))
            link.replace(path)
        except (OSError, CheckpointError):
            if data.name not in self._linked():
                shutil.rmtree(data, ignore_errors=True)
            raise

    def _prune(self, saved: str) -> None:
        surplus = self._numbered()[: -self._keep_last] if self._keep_last else []
        if surplus := [name for name in surplus if name != saved]:
            sync(self._directory)
        for name in surplus:
            _remove(self._directory / name)

    def _sweep(self) -> None:
        """Delete what no link points to, once it is certain that no crash brings a link back."""
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
            f"the name of a {what} must be up to 100 letters, digits, '_', '-' and '.', and begin "
            f"with none of the last two, got {name!r}"
        )
    return name


def _behind(path: Path) -> Path:
    """Return where a link leads; unlike `Path.resolve`, also where it leads to itself."""
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
        raise CheckpointError(f"{path.name} is damaged: its sha256 is not what was saved")


def _try_link(directory: Path) -> None:
    """Make a link, as each save does, and remove it."""
    link = directory / f"{_HIDDEN}linkable.link"
    try:
        link.unlink(missing_ok=True)
        link.symlink_to("nothing")
        link.unlink()
    except OSError as error:
        raise ConfigError(
            f"{directory} can hold no symbolic links, which checkpoints need: {error.strerror}; "
            "give a directory on another disk"
        ) from error


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()
