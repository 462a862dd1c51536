"""What the wheel and the source distribution hold, and that they install and run elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.test_architecture import ROOT

_PROGRAM = """
import asyncrl
from asyncrl.run.run_config import RunConfig
from asyncrl.agents.dqn import DQNConfig

print(asyncrl.__file__)
make_env = asyncrl.EnvConfig(id="CartPole-v1", n_envs=2).build
stop = asyncrl.MaxOptSteps(20)
print(asyncrl.train_sync(DQNConfig(), make_env, asyncrl.RunConfig(), stop=stop).stop_reason)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked source distribution."""
    pytest.importorskip("hatchling", reason="builds the package; `make test` installs it")
    folder = tmp_path_factory.mktemp("source")
    _python(ROOT, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder))
    (packed,) = folder.glob("*.tar.gz")
    with tarfile.open(packed) as opened:
        opened.extractall(folder, filter="data")
    return folder / packed.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel_file(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that the source distribution builds."""
    folder = tmp_path_factory.mktemp("wheel")
    _python(source, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(wheel_file: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(wheel_file) as opened:
        yield opened


def _python(cwd: Path, *arguments: str, path: Path | None = None) -> str:
    """Run the interpreter outside the checkout's import path; return its output."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"PYTHONPATH": str(path)} if path else {}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environ,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_source_distribution_holds_what_contributors_need(source: Path) -> None:
    names = ("Makefile", "constraints.txt", "tests", "docs", "examples", "docker", "zensical.toml")
    assert not [name for name in names if not (source / name).exists()]


@pytest.mark.processes
def test_wheel_installs_and_trains_outside_the_checkout(wheel_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("pip", reason="installs the wheel")
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    _python(work, *install, "--target", str(site), str(wheel_file))
    assert "0.1.0" in _python(work, "-m", "asyncrl", "--version", path=site)
    place, reason = _python(work, "-c", _PROGRAM, path=site).split("\n", 1)
    assert Path(place).is_relative_to(site)
    assert "20" in reason


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
