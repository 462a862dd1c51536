"""`asyncrl resume` goes on where a run was, however it ended."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from asyncrl.checkpoint import Checkpointer
from asyncrl.cli.resume_command import parse
from asyncrl.errors import ConfigError
from tests.cli.conftest import Trained
from tests.cli.console import TINY, run, started
from tests.helpers import wait_until


def metrics(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def run_dir(trained: Trained, tmp_path: Path) -> Path:
    """A copy of a run that has ended."""
    return Path(shutil.copytree(trained.directory, tmp_path / "run", symlinks=True))


@pytest.mark.processes
def test_finished_run_goes_on_to_a_higher_limit(run_dir: Path) -> None:
    before = json.loads((run_dir / "summary.json").read_text())
    limit = before["opt_steps"] + 200
    done = run("resume", "run", "--max-opt-steps", str(limit), "--quiet", cwd=run_dir.parent)
    assert done.returncode == 0, done.stderr
    assert "resumed with other settings than before: max_opt_steps" in done.stderr
    after = json.loads((run_dir / "summary.json").read_text())
    assert after["opt_steps"] == limit
    assert after["env_steps"] > before["env_steps"]
    assert after["wall_s"] > before["wall_s"]
    ledger = after["ledger"]
    assert ledger["produced"] > before["ledger"]["produced"]
    assert ledger["produced"] == ledger["stored"] + ledger["dropped"] + ledger["lost"]
    for name in ("opt_steps", "env_steps", "wall_s", "ledger/stored"):
        values = [record[name] for record in metrics(run_dir) if name in record]
        assert values == sorted(values), f"{name} goes on in the same file"
    assert Checkpointer(run_dir / "checkpoints").latest() == str(limit)


@pytest.mark.fault("F21")
@pytest.mark.processes
def test_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    args = [*TINY, "--run-dir", "x", "--trainer.books.save-interval-opt-steps", "100"]
    checkpoints = Checkpointer(tmp_path / "x/checkpoints")
    with started("train", "dqn", *args, cwd=tmp_path) as process:
        wait_until(lambda: len(checkpoints.names()) > 2, 40, "checkpoints")
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=20)
    saved = checkpoints.load_latest().meta
    limit = saved["opt_steps"] + 100
    done = run("resume", "x", "--max-opt-steps", str(limit), "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "x/summary.json").read_text())
    assert summary["opt_steps"] == limit
    assert summary["env_steps"] >= saved["env_steps"]
    ledger = summary["ledger"]
    assert ledger["produced"] == ledger["stored"] + ledger["dropped"] + ledger["lost"]


def test_settings_are_those_of_the_run(run_dir: Path) -> None:
    arguments = parse([str(run_dir), "--trainer.batch-size", "32"])
    assert arguments.output.run_dir == run_dir
    assert arguments.config.trainer.batch_size == 32
    assert arguments.config.segment.length == 4, "as the run was started"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "name a run"),
        (["--quiet"], "name a run"),
        (["nowhere"], "no config.yaml"),
        (["RUN", "--run-dir", "other"], "--run-dir has no meaning here"),
        (["RUN", "--config=other.yaml"], "--config has no meaning here"),
        (["RUN", "--actors", "auto"], "--actors auto has no meaning here"),
    ],
)
def test_arguments_are_checked(argv: list[str], words: str, run_dir: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        parse([str(run_dir) if word == "RUN" else word for word in argv])


def test_help_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    assert not ended.value.code
    assert "asyncrl resume RUN_DIR" in capsys.readouterr().out
