"""`asyncrl play`: a saved model in a window."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.cli.main import main
from tests.cli.conftest import Trained, constant_run
from tests.support.fake_envs import TellingEnv

pytestmark = pytest.mark.processes


class Window(TellingEnv):
    """Three steps pay 10 times the action and 1, 2, 3. Writes down that it opens a window."""

    def __init__(self, seen: str, render_mode: str = "") -> None:
        super().__init__()
        self.render_mode = render_mode
        with Path(seen).open("a") as file:
            file.write(f"{render_mode}\n")


def test_environment_itself_opens_one_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    seen = tmp_path / "seen"
    where = {"env": f"{__name__}:Window", "env_kwargs": {"seen": str(seen)}}
    constant_run(tmp_path, {"5": 1, "20": 4}, **where)
    run_dir = str(tmp_path)
    assert main(["play", run_dir, "--checkpoint", "20"]) == 0
    assert capsys.readouterr().out.startswith("126 mean return over 3 episodes (min 126, ")
    assert seen.read_text() == "human\n"
    assert main(["play", run_dir, "--all-checkpoints", "--episodes", "1"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["36", "126"]
    assert seen.read_text() == "human\n" * 2


def test_window_shows_the_episodes_of_eval(
    trained: Trained, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pygame", reason="pygame is not installed")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    flags = [str(trained.directory), "--episodes", "1", "--seed", "7", "--checkpoint", "300"]
    assert main(["eval", *flags]) == 0
    scored = capsys.readouterr().out
    assert main(["play", *flags]) == 0
    assert capsys.readouterr().out == scored


def test_run_that_cannot_be_shown_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    constant_run(tmp_path, {"5": 1})
    run_dir = str(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert main(["play", run_dir]) == 2
    assert "TellingEnv cannot be shown: it takes no argument render_mode" in capsys.readouterr().err
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    assert main(["play", run_dir]) == 2
    assert "neither DISPLAY nor WAYLAND_DISPLAY is set; write a film" in capsys.readouterr().err
