"""Several learners on the command line: real ranks, which find each other through a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.cli import train
from asyncrl.cli.learners import after_restart, started_by
from asyncrl.cli.main import main
from asyncrl.cli.run_directory import save_starts
from asyncrl.core.callback import Callback, Training
from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.extensions.ranks.launch import _wait, learners_in
from asyncrl.extensions.ranks.lockstep import STORE_FILE
from asyncrl.run.signals import interrupting
from tests.cli import console
from tests.support import warm
from tests.support.helpers import wait_until

TWO = [*console.SLOW, "--actors", "2", "--config", "ranks.yaml", "--quiet"]
_DEADLINE_S = 180.0


@contextmanager
def ranks(tmp_path: Path, *args: str, local_world: int = 2) -> Iterator[list[warm.Process]]:
    """Start a command line as each of two ranks, forked from a process that has loaded torch."""
    with ExitStack() as stack:
        started = []
        for rank in range(2):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(STORE_FILE, str(tmp_path / "store"))
                for name in ("RANK", "LOCAL_RANK"):
                    patch.setenv(name, str(rank))
                patch.setenv("WORLD_SIZE", "2")
                patch.setenv("LOCAL_WORLD_SIZE", str(local_world))
                patch.setenv("GLOO_SOCKET_IFNAME", "lo")
                started.append(stack.enter_context(console.started(*args, cwd=tmp_path)))
        yield started


def checkpoints(run: Path) -> tuple[list[str], list[str]]:
    """Return the numbers of what the first and the second rank have saved."""
    found = []
    for where in (run / "checkpoints", run / "checkpoints" / "rank-1"):
        there = where.iterdir() if where.exists() else ()
        found.append(sorted(path.name for path in there if path.name.isdecimal()))
    return found[0], found[1]


def test_the_number_of_learners_is_read_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert learners_in(["dqn", "--learners=2", "--quiet"]) == 2
    assert learners_in(["dqn", "--learners"]) == 1
    assert learners_in(["dqn", "--learners", "many"]) == 1  # the parser refuses it
    monkeypatch.setenv("RANK", "0")
    assert learners_in(["dqn", "--learners", "3"]) == 1


class Asks(Callback):
    """Asks for a score on each rank."""

    def step(self, trainer: Training) -> None:
        if trainer.opt_steps == 20:
            trainer.evaluate()


@pytest.mark.processes
def test_a_killed_learner_is_named_and_the_other_one_saves(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (tmp_path / "ranks.yaml").write_text("ranks: {patience_s: 30}")
    flags = [*TWO, "--save.interval-opt-steps", "10"]
    with ranks(tmp_path, "train", "dqn", *flags, "--run-dir", "run") as (first, second):
        wait_until(lambda: all(checkpoints(run)), _DEADLINE_S, "a checkpoint of both")
        os.kill(second.pid, signal.SIGKILL)
        assert first.wait(_DEADLINE_S) == 1
        said = first.stderr.read()
    assert "rank 1 ended without an error" in said
    assert f"process {second.pid}" in said
    assert (run / "error.txt").exists()
    assert int(checkpoints(run)[0][-1]) >= 10


@pytest.mark.processes
def test_learners_train_and_save_at_the_same_step_when_all_are_terminated(tmp_path: Path) -> None:
    """They sum by gloo, as if they were on two machines; above, in shared memory."""
    run = tmp_path / "run"
    flags = [*TWO, "--save.interval-opt-steps", "0"]
    (tmp_path / "ranks.yaml").write_text(
        "ranks: {patience_s: 30, several_machines: true}\n"
        f"parts: {{callbacks: ['{__name__}:Asks']}}"
    )

    def learns() -> bool:
        path = run / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        records = text.rpartition("\n")[0].splitlines()  # the last line may still be written
        return any(json.loads(record)["opt_steps"] > 20 for record in records)

    with ranks(tmp_path, "train", "dqn", *flags, "--run-dir", "run", local_world=1) as both:
        wait_until(learns, _DEADLINE_S, "the first optimisation steps")
        for rank in both:
            os.kill(rank.pid, signal.SIGTERM)
        codes = [rank.wait(_DEADLINE_S) for rank in both]
        assert both[1].stdout.read() == ""
    assert codes == [128 + signal.SIGTERM] * 2
    first, second = checkpoints(run)
    assert len(first) == 1
    assert first == second, "at the same step"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["opt_steps"], summary["setup"]["learners"]) == (int(first[0]), 2)
    ledger = summary["ledger"]
    kept = ledger["stored"] + ledger["in_flight"]  # no tails: all ends at once
    assert ledger["produced"] == kept + ledger["dropped"] + ledger["lost"]


class Restarted:
    """The second start of rank 0 of two, by torchrun."""

    rank, world = 0, 2

    def __init__(self, run_dir: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"RANK": 0, "WORLD_SIZE": 2, "TORCHELASTIC_RESTART_COUNT": 1}.items():
            monkeypatch.setenv(name, str(value))
        command = ["dqn", *(["--run-dir", str(run_dir)] if run_dir else [])]
        self.arguments = train.parse(command)

    def continued(self) -> Any:
        group: Any = self
        return after_restart(group, self.arguments)


def test_restarted_learners_resume_or_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    restarted = Restarted(tmp_path, monkeypatch)
    assert restarted.continued() is None, "there was no run yet"
    (tmp_path / "config.yaml").touch()
    for others in ([], [{"launcher": "another machine 1 [2]"}]):
        save_starts(others, tmp_path)
        assert restarted.continued() is None, "refused as at the first start"
    save_starts([started_by()], tmp_path)
    shard = tmp_path / "checkpoints" / "rank-1"
    Checkpointer(shard).save("10", {}, {})
    assert restarted.continued().resume is False
    assert not shard.exists()
    assert "without a checkpoint; it begins again" in caplog.text
    Checkpointer(tmp_path / "checkpoints").save("10", {}, {})
    assert restarted.continued().resume is True
    with pytest.raises(ConfigError, match="without --run-dir"):
        Restarted(None, monkeypatch).continued()


@pytest.mark.processes
def test_a_second_signal_kills_all_learners() -> None:
    interrupter = Interrupter()
    with interrupting(interrupter) as interrupted:
        interrupted.disarm()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupter.wait(_DEADLINE_S)
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: interrupted.again, _DEADLINE_S, "the second signal")
        both = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
        assert _wait(both, interrupter, interrupted) == 128 + signal.SIGINT
    assert [one.returncode for one in both] == [-signal.SIGKILL] * 2


def test_what_several_learners_cannot_train_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for flags, said in (
        ("--mode sync", "--mode sync trains with one learner, but 2 were started"),
        ("--learners 3", "--learners 3 starts as many learners, but this is one of 2 already"),
    ):
        assert main(["train", "dqn", *flags.split()]) == 2
        assert said in capsys.readouterr().err
