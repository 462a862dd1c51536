"""What the wheel holds: the whole package, its marker and command, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.test_architecture import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    pytest.importorskip("hatchling", reason="builds the wheel; `make test` installs it")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as opened:
        yield opened


def test_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    files = {p for p in (ROOT / "asyncrl").rglob("*") if p.is_file() and p.suffix != ".pyc"}
    named = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert sorted(named) == sorted(p.relative_to(ROOT).as_posix() for p in files)
    assert {"asyncrl/py.typed", "asyncrl/__init__.pyi"} <= set(named)


def test_wheel_has_name_version_and_classifiers(wheel: zipfile.ZipFile) -> None:
    info = next(Path(n).parent for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    said = message_from_bytes(wheel.read(f"{info}/METADATA"))
    assert (said["Name"], said["License-Expression"]) == ("asyncrl", "MIT")
    assert said["Description-Content-Type"] == "text/markdown"
    assert {"atari", "mujoco", "onnx", "tensorboard"} <= set(said.get_all("Provides-Extra") or ())
    assert "Typing :: Typed" in (said.get_all("Classifier") or ())
    assert "asyncrl = asyncrl.cli.main:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
