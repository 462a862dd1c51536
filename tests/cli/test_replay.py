"""`asyncrl replay`: a run of actor processes again, also one that was killed."""

from __future__ import annotations

import io
import signal
from pathlib import Path

import pytest

from asyncrl.cli.main import main
from asyncrl.core.errors import CheckpointError
from asyncrl.extensions.order.log import Learns, OrderFile
from tests.cli.conftest import Trained
from tests.cli.console import TINY, started
from tests.support.helpers import wait_until

pytestmark = pytest.mark.processes

LEARNED = 60  # optimisation steps, at least, before the kill


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of two actors that was killed."""
    cwd = tmp_path_factory.mktemp("killed")
    flags = [*TINY, "--actors", "2", "--record-order", "--run-dir", "x", "--quiet"]

    def learned() -> bool:
        """Whether as much is on disk; what the last tenth of a second recorded may be lost."""
        try:
            events = [*OrderFile(cwd / "x" / "order").events()]
        except CheckpointError:  # nothing is there yet
            return False
        return sum(isinstance(event, Learns) for event in events) >= LEARNED

    with started("train", "dqn", *flags, cwd=cwd) as process:
        wait_until(learned, 60.0, "the run to learn")
        process.send_signal(signal.SIGKILL)
        process.wait(30.0)
    return cwd / "x"


def test_killed_run_is_replayed_bit_for_bit_to_its_last_record(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(killed)]) == 0
    steps, bits, sizes = capsys.readouterr().out.splitlines()
    assert int(steps.split()[1]) >= LEARNED
    assert steps.endswith("the record ends here, before the end of the run")
    assert bits.endswith("are the run's, bit for bit")
    assert int(bits.split()[1]) > 1
    assert "MB of disk space" in sizes


def test_until_stops_there_and_opens_the_debugger(
    killed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("p trainer.run_step(), trainer.opt_steps\nc\n"))
    before = signal.getsignal(signal.SIGINT)
    assert main(["replay", str(killed), "--until", "20", "--pdb"]) == 0
    assert signal.getsignal(signal.SIGINT) == before
    shown = capsys.readouterr()
    assert "(True, 21)" in shown.err
    assert shown.out.startswith("replayed 21 optimisation steps")


def test_run_without_a_recorded_order_is_refused(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(trained.directory)]) == 2
    assert "train with --record-order" in capsys.readouterr().err
    assert main(["train", "dqn", "--mode", "sync", "--record-order"]) == 2
    assert "--record-order has no effect with --mode=sync" in capsys.readouterr().err
    assert main(["replay", str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err
