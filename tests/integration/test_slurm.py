"""The recipe for Slurm on a real cluster, whose nodes are processes of this machine."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.checkpoint.checkpoint import Checkpointer
from tests.support.helpers import wait_until
from tests.support.slurm import Slurm, why_not

ROOT = Path(__file__).parents[2]

SMALLER = {
    "sac --env HalfCheetah-v5": "dqn --env CartPole-v1 --hosts.host-timeout-s 3",
    "--actors 16..32": "--actors 2..4",
    "--actors 16 ": "--actors 2 ",
}
"""What is said in the recipe, and what is run here."""

DEADLINE_S = 120.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a cluster"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    # The path of a socket is short, that of a test's directory is not.
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as place,
        Slurm(Path(place)) as cluster,
    ):
        yield cluster


def recipe(tmp_path: Path) -> Path:
    text = (ROOT / "docker" / "join.sbatch").read_text()
    for said, run in SMALLER.items():
        assert said in text
        text = text.replace(said, run)
    script = tmp_path / "join.sbatch"
    script.write_text(text)
    return script


def test_a_job_with_a_learner_and_two_hosts(slurm: Slurm, tmp_path: Path) -> None:
    path = str(Path(sys.executable).parent)
    job = slurm.submit(recipe(tmp_path), cwd=tmp_path, path=path)
    out, run_dir = tmp_path / "job.out", tmp_path / "runs" / f"sac-{job}"
    checkpoints = Checkpointer(run_dir / "checkpoints")

    def printed(words: str, times: int = 1) -> bool:
        return out.exists() and out.read_text().count(words) >= times

    wait_until(lambda: printed("joined tcp://", 2), DEADLINE_S, "two hosts")
    learner = (run_dir / "metrics.jsonl").exists
    wait_until(learner, DEADLINE_S, "records")

    before = set(checkpoints.names())
    slurm.ask("scancel", "--signal=USR1", job)
    wait_until(lambda: set(checkpoints.names()) - before, DEADLINE_S, "a checkpoint on USR1")
    assert not printed("left the run")

    slurm.lose("n2")
    wait_until(lambda: printed("was not heard for"), DEADLINE_S, "the loss of a node")
    down = ("sinfo", "--noheader", "--nodes=n2", "--format=%T")
    wait_until(lambda: slurm.ask(*down).startswith("down"), DEADLINE_S, "Slurm to know it")
    records = (run_dir / "metrics.jsonl").read_text().count("\n")
    wait_until(
        lambda: (run_dir / "metrics.jsonl").read_text().count("\n") > records + 2,
        DEADLINE_S,
        "the run to go on",
    )

    slurm.ask("scancel", job)
    wait_until(lambda: not slurm.ask("squeue", "--noheader"), DEADLINE_S, "the job to end")
    wait_until(lambda: not slurm.processes(), DEADLINE_S, "its processes to end")
    assert not (run_dir / "join.key").exists(), out.read_text()
    assert printed("run ended: interrupted by SIGTERM")
