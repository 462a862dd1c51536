"""A checkpoint is loaded unchanged or not at all, whatever happens to disk and process."""

from __future__ import annotations

import itertools
import logging
import math
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from typing import Any

import numpy as np
import pytest

from asyncrl.checkpoint.checkpoint import PASSING, Checkpoint, Checkpointer, pack_manifest
from asyncrl.checkpoint.directory import DirectoryLock
from asyncrl.core.errors import CheckpointError, ConfigError
from tests.support import scale
from tests.support.traced_saves import groups

FILES_OF = ["agent", "model"]
FILES = ["agent.safetensors", "model.safetensors", "manifest.json"]

DAMAGES: dict[str, Callable[[Path], object]] = {
    "emptied": lambda path: path.write_bytes(b""),
    "first half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "deleted": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


def value_of(checkpointer: Checkpointer, name: str) -> float:
    return float(checkpointer.load(name).groups["model"]["weight"][0])


def hidden(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("."))


def flip(path: Path, index: int) -> None:
    data = bytearray(path.read_bytes())
    data[index] ^= 1
    path.write_bytes(data)


def test_groups_may_stay_in_their_files(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save("1", groups(7.0), {"a": 1})
    for loaded in (
        checkpointer.load("1", mapped=["agent"]),
        checkpointer.load_latest(mapped=["agent"]),
    ):
        writeable = {
            group: a.flags.writeable for group in FILES_OF for a in loaded.groups[group].values()
        }
        assert writeable == {"agent": False, "model": True}
        assert loaded.groups["agent"]["moments"].tolist() == [[7.0] * 3] * 2
        assert loaded.meta == {"a": 1}
    flip(tmp_path / "1" / "agent.safetensors", -1)
    with pytest.raises(CheckpointError, match="sha256"):
        checkpointer.load("1", mapped=["agent"])


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    path = Checkpointer(tmp_path).save("1", groups(), {})
    assert path == tmp_path / "1"
    assert path.stat().st_mode & 0o777 == 0o700
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.iterdir()}
    assert modes == dict.fromkeys(FILES, 0o600)


@pytest.mark.fault("F9")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_never_reach_the_disk(tmp_path: Path, bad: float) -> None:
    wrong = groups()
    wrong["agent"]["moments"][1, 2] = bad
    with pytest.raises(CheckpointError, match="agent/moments"):
        Checkpointer(tmp_path / "run").save("1", wrong, {})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [np.array([None]), np.zeros(2, ">f4")])
def test_arrays_that_could_not_be_loaded_are_refused(tmp_path: Path, value: np.ndarray) -> None:
    with pytest.raises(CheckpointError, match=r"model/weight.*dtype"):
        Checkpointer(tmp_path).save("1", {"model": {"weight": value}}, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"long": "x" * 5000, "run": {"ledger": [1.0, -math.inf]}}, r"meta\.run\.ledger\.1=-inf: "),
        ({"a": object()}, r"meta\.a=<object"),
    ],
)
def test_meta_that_is_not_json_is_refused_by_name(
    tmp_path: Path, meta: dict[str, object], said: str
) -> None:
    with pytest.raises(CheckpointError, match=f"cannot save {said}") as error:
        Checkpointer(tmp_path).save("1", groups(), meta)
    assert len(str(error.value)) < 200
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "..", "../1", "a/b", "a\\b", "1\n", "x" * 101])
def test_names_that_could_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    checkpointer = Checkpointer(tmp_path)
    with pytest.raises(CheckpointError, match="name of a checkpoint"):
        checkpointer.save(name, groups(), {})
    with pytest.raises(CheckpointError, match="name of a checkpoint"):
        checkpointer.load(name)
    with pytest.raises(CheckpointError, match="name of a group"):
        checkpointer.save("1", {name: {}}, {})
    assert not list(tmp_path.iterdir())


def test_names_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path / "run")
    assert (checkpointer.names(), checkpointer.latest()) == ([], None)
    for name in ("100", "best", "20", "9"):
        checkpointer.save(name, groups(), {})
    (tmp_path / "run" / "logs").mkdir()
    (tmp_path / "run" / "notes.txt").touch()
    assert checkpointer.names() == ["9", "20", "100", "best"]
    assert checkpointer.latest() == "100"


def test_missing_checkpoint_is_a_sentence_with_those_there_are(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    with pytest.raises(CheckpointError, match=r"no checkpoint .*/best; no other one is there"):
        checkpointer.load("best")
    with pytest.raises(CheckpointError, match="no complete numbered checkpoint"):
        checkpointer.load_latest()
    checkpointer.save("best", groups(), {})
    checkpointer.save("10", groups(), {})
    with pytest.raises(CheckpointError, match=r"no checkpoint .*/20; also there: 10, best"):
        checkpointer.load("20")
    shutil.rmtree((tmp_path / "best").resolve())
    with pytest.raises(CheckpointError, match=r"/best: manifest\.json is missing; also there: 10"):
        checkpointer.load("best")


@pytest.mark.behaviour(number=47)
def test_keep_last_deletes_old_numbers_only(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, keep_last=2)
    checkpointer.save("best", groups(), {})
    for number in range(8, 12):
        checkpointer.save(str(number), groups(number), {})
    assert checkpointer.names() == ["10", "11", "best"]
    assert len(hidden(tmp_path)) == 3
    assert [value_of(checkpointer, name) for name in ("10", "11", "best")] == [10, 11, 1]
    checkpointer.save("1", groups(), {})
    assert checkpointer.names() == ["1", "10", "11", "best"], "what was just saved stays, too"
    with pytest.raises(ConfigError, match=r"keep_last.*-1"):
        Checkpointer(tmp_path, keep_last=-1)


def test_passing_checkpoint_is_replaced_by_the_next_one(tmp_path: Path) -> None:
    checkpointer, passing = Checkpointer(tmp_path, keep_last=3), {PASSING: True}
    for name in ("10", "20"):
        checkpointer.save(name, groups(), {})
    for name in ("22", "22", "best", "25"):
        checkpointer.save(name, groups(), {} if name == "best" else passing)
    assert checkpointer.names() == ["10", "20", "25", "best"]
    checkpointer.save("30", groups(), {})
    assert checkpointer.names() == ["10", "20", "30", "best"]
    checkpointer.save("30", groups(), passing)
    checkpointer.save("31", groups(), passing)
    assert checkpointer.names() == ["20", "30", "31", "best"], "30 was there to stay"


@pytest.mark.fault("F20")
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_the_one_before_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, damage: str
) -> None:
    (checkpointer := Checkpointer(tmp_path)).save("90", groups(90), {"opt_steps": 90})
    checkpointer.save("100", groups(100), {"opt_steps": 100})
    DAMAGES[damage](tmp_path / "100" / file)
    with pytest.raises(CheckpointError, match=f"/100: {file} .*also there: 90"):
        checkpointer.load("100")
    with caplog.at_level(logging.WARNING):
        assert checkpointer.load_latest().meta == {"opt_steps": 90}
    (message,) = caplog.messages
    assert f"/100: {file} " in message
    assert message.endswith("; also there: 90; falling back to the previous one"), "both are named"


@pytest.mark.fault("F20")
@pytest.mark.parametrize("target", ["nowhere", "/dev/zero"])
def test_link_that_leads_to_no_checkpoint_is_passed_over(tmp_path: Path, target: str) -> None:
    (checkpointer := Checkpointer(tmp_path)).save("90", groups(90), {})
    (tmp_path / "100").symlink_to(target)
    assert value_of(checkpointer, checkpointer.load_latest().path.name) == 90
    with pytest.raises(CheckpointError, match=r"/100: manifest\.json is missing; also there: 90"):
        checkpointer.load("100")
    checkpointer.save("100", groups(100), {})
    assert value_of(checkpointer, "100") == 100


@pytest.mark.fault("F20")
@pytest.mark.parametrize("file", FILES)
def test_any_flipped_bit_is_found(tmp_path: Path, file: str) -> None:
    checkpointer = Checkpointer(tmp_path)
    path = checkpointer.save("1", groups(), {"opt_steps": 100, "score": 1.5}) / file
    for index in range(0, path.stat().st_size, 1 if scale.full else 5):
        flip(path, index)
        with pytest.raises(CheckpointError, match=file):
            checkpointer.load("1")
        flip(path, index)
    assert checkpointer.load("1").meta == {"opt_steps": 100, "score": 1.5}


FORGED = [pack_manifest({}, files) for files in ({"../x": {"size": 1, "sha256": ""}}, {"x": 1})]


@pytest.mark.fault("F20")
@pytest.mark.parametrize("raw", [b"[]", b"{}", b"[" * 100_000, b"\xff", *FORGED])
def test_manifest_of_any_other_kind_is_a_sentence(tmp_path: Path, raw: bytes) -> None:
    path = Checkpointer(tmp_path).save("1", {}, {})
    (path / "manifest.json").write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        Checkpointer(tmp_path).load("1")


class Killed(BaseException):
    """Ends a save as a crash would: nothing of it may catch this."""


class FailsAt:
    """Stands in for a system call and fails at one call of all."""

    def __init__(self, call: Callable[..., Any], index: int, error: BaseException) -> None:
        self.calls, self._call, self._index, self._error = 0, call, index, error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self._index:
            raise self._error
        return self._call(*args, **kwargs)


CALLS = ["fsync", "replace", "symlink", "open", "fdopen", "mkdir", "unlink", "rmdir"]


@pytest.mark.fault("F17", "F18")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("name", "error"), [("best", Killed("at once")), ("6", OSError(28, "No space left on device"))]
)
def test_wherever_a_save_ends_there_is_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, call: str, name: str
) -> None:
    for index in itertools.count(1):
        directory = tmp_path / str(index)
        checkpointer = Checkpointer(directory, keep_last=1)
        checkpointer.save("5", groups(1), {})
        checkpointer.save("best", groups(1), {})
        shutil.copytree(directory / "best", directory / ".asyncrl-leftover")
        failing = FailsAt(getattr(os, call), index, error)
        with monkeypatch.context() as patch, suppress(Killed, CheckpointError):
            patch.setattr(os, call, failing)
            checkpointer.save(name, groups(2), {})
        assert {"best"} < set(checkpointer.names()) <= {"5", "6", "best"}
        assert {value_of(checkpointer, each) for each in checkpointer.names()} <= {1, 2}
        checkpointer.save(name, groups(3), {})
        assert value_of(checkpointer, name) == 3
        assert len(hidden(directory)) == len(checkpointer.names()) == 2, "nothing is left over"
        if failing.calls < index:
            break
    assert index > 1, "this call is never made, so the test shows nothing"


@pytest.mark.fault("F19")
def test_the_data_is_on_disk_before_the_link_is_switched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save("best", groups(1), {})
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        name = next(p.name for p in [tmp_path, *tmp_path.rglob("*")] if p.lstat().st_ino == inode)
        done.append("folder" if name.startswith(".asyncrl-") else name)
        fsync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        done.append("switch")
        assert (
            len([name for name in hidden(tmp_path) if not name.endswith((".link", ".lock"))]) == 2
        )
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    checkpointer.save("best", groups(2), {})
    assert done == [tmp_path.name, *FILES, "folder", "switch", tmp_path.name]
    assert len(hidden(tmp_path)) == 1


FOREIGN = [
    ".data-original/precious.csv",
    ".data-weights_/model.safetensors",
    ".data-notes.txt",
    ".asyncrl-notes.txt",
    ".asyncrl-abcdefgh-notes/a",
]


def test_what_others_have_put_there_stays(tmp_path: Path) -> None:
    for name in FOREIGN:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".data-archived").symlink_to(tmp_path / ".data-original")
    checkpointer = Checkpointer(tmp_path, keep_last=1)
    for name in ("1", "best", "2", "best"):
        checkpointer.save(name, groups(), {})
    assert [(tmp_path / name).read_text() for name in FOREIGN] == FOREIGN
    assert (tmp_path / ".data-archived").is_symlink()


def test_reader_that_loses_the_newest_to_a_newer_one_loads_that(tmp_path: Path) -> None:
    writer = Checkpointer(tmp_path, keep_last=1)
    writer.save("1", groups(1.0), {})
    left = [2, 3]

    class Slow(Checkpointer):
        """Has newer ones saved, and the others deleted, before it has begun to read."""

        def load(self, name: str, *, mapped: Collection[str] = ()) -> Checkpoint:
            if left:
                number = left.pop(0)
                writer.save(str(number), groups(number), {})
            return super().load(name, mapped=mapped)

    assert Slow(tmp_path).load_latest().groups["model"]["weight"][0] == 3.0


def test_directory_without_checkpoints_or_of_a_newer_format_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has saved none; start a new run"):
        Checkpointer(tmp_path).load_latest()
    for name in ("1", "2"):
        path = Checkpointer(tmp_path).save(name, groups(), {}) / "manifest.json"
        path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 9'))
    with pytest.raises(
        CheckpointError, match=r"checkpoint \S*/2: .* has format 9.*use the version"
    ):
        Checkpointer(tmp_path).load_latest()


class Stream:
    """A group that looks around before it hands its rows over."""

    def __init__(self, directory: Path, rows: np.ndarray) -> None:
        self._directory = directory
        self._rows = rows
        self.shapes = {"rows": (rows.shape, rows.dtype.name)}
        self.files_before: list[str] = []

    def pieces(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        files = self._directory.glob(".asyncrl-*/*")
        self.files_before = [f.name for f in files if not (f.parent / FILES[-1]).exists()]
        for i in range(len(self._rows)):
            yield i, {"rows": self._rows[i : i + 1]}

    def rest(self) -> dict[str, np.ndarray]:
        return {"count": np.array([len(self._rows)])}

    def close(self) -> None:
        pass


def test_stream_is_taken_first_and_comes_back_as_arrays(tmp_path: Path) -> None:
    stream = Stream(tmp_path, np.arange(12.0).reshape(4, 3))
    Checkpointer(tmp_path).save("1", {**groups(), "replay": stream}, {})
    assert stream.files_before == ["replay.safetensors"]
    for mapped in ([], ["replay"]):
        loaded = Checkpointer(tmp_path).load("1", mapped=mapped).groups
        assert list(loaded["replay"]["rows"][:, 0]) == [0.0, 3.0, 6.0, 9.0]
        assert loaded["replay"]["count"] == [4]
        assert set(loaded) == {"agent", "model", "replay"}


def test_second_writer_is_refused_and_the_first_one_ends_well(tmp_path: Path) -> None:
    class Overtaken(Stream):
        def pieces(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
            with pytest.raises(CheckpointError, match=r"other: .* in use by another run, process"):
                Checkpointer(tmp_path).save("other", groups(), {})
            return super().pieces()

    stream = Overtaken(tmp_path, np.arange(12.0).reshape(4, 3))
    Checkpointer(tmp_path).save("1", {"replay": stream}, {})
    assert Checkpointer(tmp_path).names() == ["1"]
    Checkpointer(tmp_path).load("1")
    Checkpointer(tmp_path).save("other", groups(), {})
    assert not (tmp_path / ".lock").exists()


def locked(directory: Path) -> Checkpointer:
    """Return who holds the lock there, and has saved a checkpoint."""
    checkpointer = Checkpointer(directory)
    checkpointer.lock()
    checkpointer.save("1", groups(1), {})
    return checkpointer


@pytest.mark.fault("F39")
@pytest.mark.parametrize("is_renamed", [False, True])
def test_directory_that_has_gone_is_made_again(
    is_renamed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    checkpointer = locked(run / "checkpoints")
    run.rename(elsewhere)
    if not is_renamed:
        shutil.rmtree(elsewhere)
    checkpointer.save("2", groups(2), {})
    checkpointer.save("3", groups(3), {})
    assert checkpointer.names() == ["2", "3"]
    assert value_of(checkpointer, "3") == 3
    assert S_IMODE(run.stat().st_mode) == 0o700
    assert caplog.text.count("was removed or renamed") == 1
    with pytest.raises(ConfigError, match="in use by another run"):
        DirectoryLock(run / "checkpoints")
    checkpointer.unlock()
    DirectoryLock(run / "checkpoints").release()
    if is_renamed:
        assert value_of(Checkpointer(elsewhere / "checkpoints"), "1") == 1


@pytest.mark.parametrize("goes_on", [True, False])
def test_run_that_has_taken_the_place_is_left_alone(goes_on: bool, tmp_path: Path) -> None:
    checkpointer = locked(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    other = locked(tmp_path / "run")
    if not goes_on:
        other.unlock()
    why = "in use by another run" if goes_on else "replaced by that of another run"
    with pytest.raises(CheckpointError, match=why):
        checkpointer.save("2", groups(2), {})
    checkpointer.unlock()
    assert other.names() == ["1"]
    assert (tmp_path / "run/.lock").exists() == goes_on
    other.unlock()


def test_reader_that_loses_its_data_to_a_newer_save_reads_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save("best", groups(1), {})
    read_bytes = Path.read_bytes
    reads: list[str] = []

    def overtaken(path: Path) -> bytes:
        data = read_bytes(path)
        reads.append(path.name)
        if len(reads) == 1:
            Checkpointer(tmp_path).save("best", groups(2), {})
        return data

    monkeypatch.setattr(Path, "read_bytes", overtaken)
    assert value_of(checkpointer, "best") == 2
    assert reads.count("manifest.json") == 2


def test_run_that_was_copied_without_its_links_continues(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path / "run")
    for name in ("1", "2", "best"):
        checkpointer.save(name, groups(1), {})
    copy = Checkpointer(tmp_path / "copy", keep_last=1)
    for name in ("1", "2", "best"):
        shutil.copytree(tmp_path / "run" / name, tmp_path / "copy" / name)
    assert copy.names() == ["1", "2", "best"]
    copy.save("best", groups(2), {})
    assert value_of(copy, "best") == 2
    assert [value_of(copy, name) for name in copy.names() if "old" in name] == [1]
    copy.save("3", groups(3), {})
    assert copy.names()[0] == "3", "1 and 2 are deleted"


@pytest.mark.fault("F37")
def test_number_and_group_that_are_not_there_are_sentences() -> None:
    checkpoint = Checkpoint(groups(), {"a": "b"})
    with pytest.raises(CheckpointError, match="should contain a, a number, but says 'b'"):
        checkpoint.number("a")
    with pytest.raises(CheckpointError, match="should contain replay, but contains agent, model"):
        checkpoint.group("replay")
    with pytest.raises(CheckpointError, match="should contain replay, but contains nothing"):
        Checkpoint({}, {}).group("replay")
