"""Records as lines of JSON."""

from __future__ import annotations

import json
import logging
import resource
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

from asyncrl.recorders.jsonl import JsonlRecorder

make_recorder = partial(JsonlRecorder, clock=lambda: 1234.5678)
TIME = '"time": 1234.568, '


def test_line_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    recorder = make_recorder(path)
    recorder.start({})
    recorder.write({"a": 1.0})
    assert path.read_text() == f'{{{TIME}"a": 1.0}}\n'
    recorder.close(failed=False)


@pytest.mark.parametrize("whole", ["", '{"a": 1.0}\n'])
def test_half_a_line_is_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, whole: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(whole + '{"a": 2.')
    recorder = make_recorder(path)
    recorder.start({})
    recorder.write({"a": 3.0})
    recorder.close(failed=False)
    assert path.read_text() == whole + f'{{{TIME}"a": 3.0}}\n'
    assert "partial record" in caplog.text


def line(opt_steps: float, env_steps: float, **more: float) -> str:
    return json.dumps({"env_steps": env_steps, "opt_steps": opt_steps, **more}) + "\n"


@pytest.mark.fault("F21")
def test_what_a_killed_run_did_after_its_checkpoint_is_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    earlier = line(900, 9000) + "# of another program\n"
    known = line(1, 10) + line(2, 25) + line(3, 30) + line(3, 30, eval_reward=1.0)
    later = line(3, 31) + line(4, 30) + line(5, 50, long="x" * 100_000)  # type: ignore[arg-type]
    path.write_text(earlier + known + later + '{"opt_st')
    recorder = make_recorder(path)
    recorder.resume_at(env_steps=30, opt_steps=3)
    with caplog.at_level(logging.INFO):
        recorder.start({})
    assert path.read_text() == earlier + known
    assert "3 records" in caplog.text
    recorder.write({"opt_steps": 4.0})
    recorder.close(failed=False)
    assert path.read_text() == earlier + known + f'{{{TIME}"opt_steps": 4.0}}\n'


@pytest.mark.parametrize("is_renamed", [False, True])
def test_file_that_has_gone_is_begun_again(
    is_renamed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    recorder = make_recorder(run / "metrics.jsonl")
    recorder.start({})
    recorder.write({"a": 1.0})
    run.rename(elsewhere)
    if not is_renamed:
        shutil.rmtree(elsewhere)
    recorder.write({"a": 2.0})
    recorder.write({"a": 3.0})
    recorder.close(failed=False)
    assert (run / "metrics.jsonl").read_text() == f'{{{TIME}"a": 2.0}}\n{{{TIME}"a": 3.0}}\n'
    if is_renamed:
        assert (elsewhere / "metrics.jsonl").read_text() == f'{{{TIME}"a": 1.0}}\n'
    assert caplog.text.count("was removed or renamed") == 1


@pytest.mark.fault("F17")
def test_records_continue_when_a_full_disk_has_room_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    recorder = make_recorder(path)
    recorder.start({})
    recorder.write({"a": 1.0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, limits[1]))
        recorder.write({"a": 2.0})  # half of it fits
        recorder.write({"a": 3.0})
        assert path.read_text() == f'{{{TIME}"a": 1.0}}\n'
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    recorder.write({"a": 4.0})
    recorder.close(failed=False)
    assert path.read_text() == f'{{{TIME}"a": 1.0}}\n{{{TIME}"a": 4.0}}\n'
    assert caplog.text.count("records are dropped until") == 1
    assert "2 records were dropped" in caplog.text
