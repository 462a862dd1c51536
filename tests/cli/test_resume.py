"""`asyncrl resume` continues a run, however it ended."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.cli.main import main
from asyncrl.cli.resume import parse
from asyncrl.core.errors import ConfigError
from tests.cli.conftest import Trained
from tests.cli.console import run

CLOCK_TIME = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}"


def balanced(summary: dict[str, Any]) -> bool:
    ledger = summary["ledger"]
    return bool(ledger["produced"] == ledger["stored"] + ledger["dropped"] + ledger["lost"])


def metrics(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def run_dir(trained: Trained, tmp_path: Path) -> Path:
    """A copy of a run that has ended."""
    return Path(shutil.copytree(trained.directory, tmp_path / "run", symlinks=True))


@pytest.mark.processes
def test_finished_run_continues_to_a_higher_limit(run_dir: Path) -> None:
    before = json.loads((run_dir / "summary.json").read_text())
    limit = before["opt_steps"] + 200
    done = run("resume", "run", "--max-opt-steps", str(limit), "--quiet", cwd=run_dir.parent)
    assert done.returncode == 0, done.stderr
    logged = rf"{CLOCK_TIME} WARNING asyncrl\.\S+: resumed with changed settings: max_opt"
    assert re.search(logged, done.stderr, re.MULTILINE)
    assert re.search(logged, (run_dir / "warnings.log").read_text(), re.MULTILINE)
    assert parse([str(run_dir)]).agent == "dqn", "the name that train knows"
    after = json.loads((run_dir / "summary.json").read_text())
    assert after["opt_steps"] == limit
    assert after["env_steps"] > before["env_steps"]
    assert after["wall_s"] > before["wall_s"]
    assert after["ledger"]["produced"] > before["ledger"]["produced"]
    assert balanced(after)
    # Seconds between the last checkpoint and the last record are in none, so they may come again.
    for name in ("opt_steps", "env_steps", "ledger/stored", "episodes"):
        values = [record[name] for record in metrics(run_dir) if name in record]
        assert values == sorted(values), f"{name} continues in the same file"
    assert Checkpointer(run_dir / "checkpoints").latest() == str(limit)


@pytest.mark.processes
def test_run_that_has_reached_its_limit_says_so_and_stays_unchanged(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def files() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in sorted(run_dir.rglob("*")) if p.is_file()}

    before = files()
    assert main(["resume", str(run_dir)]) == 0
    assert "nothing is left to train: 300 optimisation steps are done" in caplog.text
    assert files() == before


@pytest.mark.fault("F21")
@pytest.mark.processes
@pytest.mark.parametrize("left", [None, '{"opt_steps": 100}'])
def test_run_that_was_killed_before_its_summary_gets_one(
    run_dir: Path,
    left: str | None,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = json.loads((run_dir / "summary.json").read_text())
    (run_dir / "summary.json").unlink()
    if left is not None:
        (run_dir / "summary.json").write_text(left)
    assert main(["resume", str(run_dir)]) == 0
    out = capsys.readouterr().out
    assert "nothing is left to train" in caplog.text
    assert f"run ended: {before['stop_reason']}" in out
    after = json.loads((run_dir / "summary.json").read_text())
    same = ("stop_reason", "env_steps", "opt_steps", "best_score", "best_opt_steps", "ledger")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert 0 < after["resumed_at_s"] <= before["wall_s"]
    assert after["resumed_at_s"] < after["wall_s"], "the time of both"
    assert after["env_steps_per_s"] > 0
    assert after["verdict"]["kind"] == "unmeasured"
    assert "none: nothing was left to train when the run was resumed" in out


@pytest.mark.fault("F37")
@pytest.mark.parametrize(
    ("lacks", "flags", "said"),
    [
        ("env_steps", [], "should contain env_steps, a count, but does not"),
        ("agent", [], "should contain agent, but contains model, replay"),
        ("", ["--agent.hidden", "32"], r"has shape \(16, 4\), expected \(32, 4\)"),
        ("", ["--replay.capacity", "64"], "set replay.capacity to at least"),
    ],
)
def test_checkpoint_that_cannot_be_resumed_from_is_named(
    run_dir: Path, lacks: str, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = Checkpointer(run_dir / "checkpoints")
    name = str(checkpoints.latest())
    saved = checkpoints.load(name)
    groups, meta = dict(saved.groups), copy.deepcopy(dict(saved.meta))
    if lacks in groups:
        del groups[lacks]
    elif lacks:
        del meta[lacks]
    checkpoints.save(name, groups, meta)
    assert main(["resume", str(run_dir), "--max-opt-steps", "9999", "--quiet", *flags]) == 1
    text = capsys.readouterr().err
    assert re.search(said, text), text
    assert f"cannot resume from checkpoint {run_dir}/checkpoints/{name}: " in text
    assert text.endswith("that saved it, or start a new run\n"), text


def test_run_without_checkpoints_says_so(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints = run_dir / "checkpoints"
    shutil.rmtree(checkpoints)
    assert main(["resume", str(run_dir), "--quiet"]) == 1
    assert f"{checkpoints} contains no complete numbered checkpoint" in capsys.readouterr().err
    for command in ("eval", "export"):
        assert main([command, str(run_dir)]) == 1
        assert f"{run_dir} holds no checkpoint: its run has saved none" in capsys.readouterr().err


@pytest.mark.processes
def test_run_that_saved_nothing_begins_again_and_later_fills_another_replay(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = Checkpointer(run_dir / "checkpoints")
    for name in filter(str.isdigit, checkpoints.names()):
        checkpoints.discard(name)
    assert checkpoints.names() == ["best"], "a model was evaluated before the first checkpoint"
    best = (run_dir / "checkpoints/best").readlink()
    (run_dir / "summary.json").write_text('{"opt_steps": 0}')
    begun = run("resume", "run", "--launcher", "thread", cwd=run_dir.parent)
    assert begun.returncode == 0, begun.stderr
    assert "run holds no checkpoint to resume from, so the run starts again" in begun.stdout
    assert (run_dir / "checkpoints/best").readlink() != best
    steps = [record["opt_steps"] for record in metrics(run_dir)]
    assert steps == sorted(steps), "the records of the first attempt are gone"
    before = json.loads((run_dir / "summary.json").read_text())
    assert before["opt_steps"] == 300

    other = "--segment.length 8 --replay.n-step 3 --replay.capacity 500 --max-opt-steps 400 --quiet"
    assert main(["resume", str(run_dir), *other.split()]) == 1
    assert "--no-load-replay" in capsys.readouterr().err
    done = run("resume", "run", "--no-load-replay", *other.split(), cwd=run_dir.parent)
    assert done.returncode == 0, done.stderr
    after = json.loads((run_dir / "summary.json").read_text())
    assert after["opt_steps"] == 400
    assert balanced(after)
    stored = after["ledger"]["stored"] - before["ledger"]["stored"]
    assert stored >= 64, "there was a warm-up"


def test_settings_are_those_of_the_run(run_dir: Path) -> None:
    arguments = parse([str(run_dir), "--trainer.batch-size", "32"])
    assert arguments.output.run_dir == run_dir
    assert arguments.config.trainer.batch_size == 32
    assert arguments.config.segment.length == 4, "as the run was started"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "name a run"),
        (["nowhere"], "nowhere is not a run directory: it does not exist"),
        (["RUN/checkpoints"], "it has no config.yaml; name the --run-dir"),
        (["RUN", "--run-dir", "other"], "--run-dir cannot be changed"),
        (["RUN", "--config=other.yaml"], "--config cannot be changed"),
        (["RUN", "--actors", "auto"], "--actors auto cannot be used here"),
    ],
)
def test_arguments_are_checked(argv: list[str], words: str, run_dir: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        parse([word.replace("RUN", str(run_dir)) for word in argv])


@pytest.mark.fault("F19")
def test_settings_that_were_lost_are_not_taken_for_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(ConfigError, match=r"is not a run directory: its config\.yaml is empty"):
        parse([str(tmp_path)])


@pytest.mark.processes
def test_run_branches_off_from_an_older_checkpoint(run_dir: Path) -> None:
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    (older, *_) = [name for name in Checkpointer(run_dir / "checkpoints").names() if name.isdigit()]
    limit = str(int(older) + 50)
    flags = ["--run-dir", "branch", "--max-opt-steps", limit, "--quiet"]
    done = run("resume", f"run/checkpoints/{older}", *flags, cwd=run_dir.parent)
    assert done.returncode == 0, done.stderr
    branch = run_dir.parent / "branch"
    assert json.loads((branch / "summary.json").read_text())["opt_steps"] == int(limit)
    assert min(record["opt_steps"] for record in metrics(branch)) >= int(older)
    assert Checkpointer(branch / "checkpoints").latest() == limit
    assert {path: path.read_bytes() for path in before} == before


def test_chosen_checkpoint_is_named_from_within_or_by_a_link_with_a_directory_for_its_branch(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = Checkpointer(run_dir / "checkpoints").latest()
    chosen = run_dir / "checkpoints" / str(newest)
    link = run_dir.parent / "good"
    link.symlink_to(chosen)
    monkeypatch.chdir(chosen)
    for name in (".", str(link)):
        assert parse([name, "--run-dir", "branch"]).resume == chosen
    with pytest.raises(ConfigError, match="branches off into another directory; add --run-dir"):
        parse([str(chosen)])
    with pytest.raises(ConfigError, match="cannot be combined with a chosen checkpoint"):
        parse([str(chosen), "--no-load-replay", "--run-dir", "x"])
