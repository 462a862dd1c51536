"""The checkpoint a run resumes from, and its report of changed settings."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.checkpoint.resume import (
    first_incarnation,
    load_to_branch,
    load_to_resume,
    open_checkpoints,
    plain_config,
)
from asyncrl.core.errors import CheckpointError, ConfigError

CONFIG = {"seed": 1, "trainer": {"batch_size": 64}, "hidden": [64, 64]}
META: dict[str, Any] = {"opt_steps": 5, "config": CONFIG, "run": {"incarnation": 3}}


def save(directory: Path, name: str, meta: dict[str, Any]) -> Path:
    return Checkpointer(directory).save(name, {"model": {"weight": np.zeros(2)}}, meta)


def test_newest_whole_checkpoint_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, "5", META)
    damaged = save(tmp_path, "10", {**META, "opt_steps": 10})
    (damaged / "model.safetensors").write_bytes(b"damaged")
    checkpoint = load_to_resume(tmp_path, CONFIG)
    assert checkpoint.meta["opt_steps"] == 5
    assert "falling back to the previous one" in caplog.text
    assert "10" in caplog.text
    assert first_incarnation(checkpoint) == 3


def test_settings_that_changed_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, "5", META)
    with caplog.at_level(logging.WARNING):
        load_to_resume(tmp_path, CONFIG)
        assert caplog.text == ""
        load_to_resume(tmp_path, {**CONFIG, "trainer": {"batch_size": 32}})
    assert "changed settings: trainer.batch_size: 64 -> 32" in caplog.text


def test_run_that_cannot_be_resumed_says_why(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no complete numbered checkpoint"):
        load_to_resume(tmp_path)
    save(tmp_path, "best", META)
    with pytest.raises(CheckpointError, match="no complete numbered checkpoint"):
        load_to_resume(tmp_path)
    save(tmp_path, "3", {"opt_steps": 3})
    with pytest.raises(CheckpointError, match="it cannot be resumed"):
        load_to_resume(tmp_path)


def test_nearest_checkpoint_to_the_best_model_is_named(tmp_path: Path) -> None:
    best = save(tmp_path, "best", {"opt_steps": 70})
    with pytest.raises(CheckpointError, match=r"model alone.*Checkpoints with a number contain"):
        load_to_branch(best)
    for n in (5, 60, 100):
        save(tmp_path, str(n), {**META, "opt_steps": n})
    with pytest.raises(CheckpointError, match=r"to it, of optimisation step 70, is 60$"):
        load_to_branch(best)


@pytest.mark.fault("F36")
@pytest.mark.parametrize("resume", [False, True])
def test_directory_belongs_to_the_run_that_opened_it(tmp_path: Path, resume: bool) -> None:
    if resume:
        save(tmp_path, "5", META)
    checkpointer, checkpoint = open_checkpoints(tmp_path, keep=2, resume=resume, config=CONFIG)
    assert checkpointer is not None
    assert (checkpoint is not None) == resume
    with pytest.raises(ConfigError, match="in use by another run"):
        open_checkpoints(tmp_path, keep=2, resume=resume, config=CONFIG)
    for name in ("6", "7", "8"):
        checkpointer.save(name, {}, {})
    assert checkpointer.names() == ["7", "8"], "as many as were to be kept"
    checkpointer.unlock()


@pytest.mark.fault("F21")
def test_new_run_is_not_mixed_with_an_earlier_one(tmp_path: Path) -> None:
    # Its first checkpoints would be deleted first, and a resumed run would be the earlier one.
    save(tmp_path, "5000", META)
    for _ in range(2):  # nor does it keep the directory to itself
        with pytest.raises(ConfigError, match=r"earlier run, up to 5000, .* resume that run"):
            open_checkpoints(tmp_path, keep=2, resume=False, config=CONFIG)
    assert Checkpointer(tmp_path).names() == ["5000"]


def test_directory_that_nothing_can_be_resumed_from_is_left_to_others(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="start a new run"):
        open_checkpoints(tmp_path, keep=2, resume=True, config=CONFIG)
    other = Checkpointer(tmp_path)
    other.lock()
    other.unlock()


@pytest.mark.parametrize("resume", [False, True])
def test_directory_that_can_hold_no_links_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    if resume:
        save(tmp_path / "run", "5", META)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patched:
        patched.setattr(os, "symlink", refuse)
        with pytest.raises(
            ConfigError, match=r"run does not support .* links.*not permitted.* another"
        ):
            open_checkpoints(tmp_path / "run", keep=2, resume=resume, config=CONFIG)
    assert (tmp_path / "run").exists() == resume
    for _ in range(2):  # nor is anything in the way of the next one
        checkpointer, _ = open_checkpoints(tmp_path / "run", keep=2, resume=resume, config=CONFIG)
        assert checkpointer is not None
        assert [path.name for path in (tmp_path / "run").glob(".*link")] == []
        checkpointer.unlock()


@pytest.mark.fault("F37")
def test_run_of_another_kind_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    save(tmp_path, "5", {**META, "run": {"opt_rounds": 3}})
    checkpoint = load_to_resume(tmp_path, CONFIG)
    said = (
        r"cannot resume from checkpoint \S*/5: .*run.incarnation.* the kind of run and the version"
    )
    with pytest.raises(CheckpointError, match=said):
        first_incarnation(checkpoint)


def test_settings_without_a_number_in_json_are_saved_and_compared_as_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"env_kwargs": {"limits": [math.inf, -math.inf]}, "bar": math.inf, "bias": math.nan}
    plain = plain_config(config)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    save(tmp_path, "5", {**META, "config": plain})
    with caplog.at_level(logging.WARNING):
        load_to_resume(tmp_path, config)
        assert caplog.text == ""
        load_to_resume(tmp_path, {**config, "bar": 475.0})
    assert "changed settings: bar: Infinity -> 475.0" in caplog.text


def test_without_a_directory_nothing_is_saved_and_nothing_resumed() -> None:
    assert open_checkpoints(None, keep=2, resume=False, config=CONFIG) == (None, None)
    with pytest.raises(ConfigError, match="resume=True needs a checkpoint_dir"):
        open_checkpoints(None, keep=2, resume=True, config=CONFIG)
