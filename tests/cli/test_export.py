"""`asyncrl export`: a file that acts as the run's policy does, and what reads it."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from onnxruntime import InferenceSession

from asyncrl.agents.dqn import DQNConfig
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.cli.main import main
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.messages import ModelInfo
from asyncrl.core.types import Array, ModelVersion
from asyncrl.envs.spaces import spec_from_spaces
from asyncrl.export import policy_numpy
from asyncrl.export.policy_numpy import Policy
from asyncrl.learner.run_services import POLICY
from asyncrl.run.run_config import RunConfig
from asyncrl.run.trained_policy import PolicyOf
from asyncrl.run.yaml_file import load_yaml
from tests.cli.conftest import Trained, constant_run
from tests.support.fake_envs import OBS_SPACE
from tests.support.fakes import ConstantConfig

pytestmark = pytest.mark.processes

OBS = np.random.default_rng(0).uniform(-1, 1, (40, 4)).astype(np.float32)


def actions_of(run_dir: Path, checkpoint: str) -> Array:
    """Return what a saved model does, as torch computes it."""
    config = load_yaml(RunConfig, run_dir / "config.yaml")
    env = config.env_config().build()
    spec: EnvSpec = env.spec
    env.close()
    assert isinstance(config.agent, DQNConfig)
    policy = config.agent.build_policy(spec, PolicyContext(seed=0)).train(False)
    params = Checkpointer(run_dir / "checkpoints").load(checkpoint).groups["model"]
    policy.sync_model(ModelInfo(version=ModelVersion(1), params=params))
    return policy.act(OBS).action


@pytest.mark.behaviour(number=67)
def test_the_best_model_is_exported_with_what_reads_it(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "there/policy.npz"
    assert main(["export", str(trained.directory), "--to", str(to)]) == 0
    assert f"{to} holds the model after " in capsys.readouterr().out
    loader = to.with_name("policy_numpy.py")
    assert loader.read_text() == Path(policy_numpy.__file__).read_text()
    np.save(to.with_name("obs.npy"), OBS)
    acts = "print(*p.Policy('policy.npz').act(np.load('obs.npy')))"
    code = f"import numpy as np, policy_numpy as p; {acts}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=to.parent, capture_output=True, text=True, check=True)
    assert [*map(int, done.stdout.split())] == actions_of(trained.directory, "best").tolist()


def test_a_checkpoint_is_exported_from_within_but_not_into_it(
    trained: Trained,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    to = tmp_path / "policy.npz"
    monkeypatch.chdir(trained.directory / "checkpoints/300")
    assert main(["export", ".", "--to", str(to)]) == 0
    assert np.array_equal(Policy(to).act(OBS), actions_of(trained.directory, "300"))
    files = sorted(Path().iterdir())
    assert main(["export", "."]) == 2
    assert "policy.npz would be inside checkpoint 300" in capsys.readouterr().err
    assert sorted(Path().iterdir()) == files
    monkeypatch.chdir(trained.directory / "checkpoints")
    assert main(["export", str(trained.directory), "--checkpoint", "300", "--to", str(to)]) == 0
    assert np.array_equal(Policy(to).act(OBS), actions_of(trained.directory, "300"))


def test_full_disk_is_said_and_leaves_the_file_of_before(
    trained: Trained,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    to = tmp_path / "policy.npz"
    to.write_bytes(b"of before")
    write_all = Path.write_bytes

    def write_half(path: Path, content: bytes) -> int:
        if path.parent != tmp_path:
            return write_all(path, content)
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", write_half)
        assert main(["export", str(trained.directory), "--to", str(to)]) == 2
    assert f"cannot write {to}: No space left on device; name a file" in capsys.readouterr().err
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"of before"]


def test_export_to_a_link_changes_the_file_behind_it(trained: Trained, tmp_path: Path) -> None:
    link, to = tmp_path / "current.npz", tmp_path / "deployed/policy.npz"
    to.parent.mkdir()
    to.write_bytes(b"of before")
    link.symlink_to(to)
    assert main(["export", str(trained.directory), "--to", str(link)]) == 0
    assert link.is_symlink()
    assert to.read_bytes() != b"of before"
    assert [*to.parent.iterdir()] == [to]


def test_an_onnx_model_stands_alone(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "policy.onnx"
    assert main(["export", str(trained.directory), "--to", str(to)]) == 0
    assert re.fullmatch(
        rf"{to} holds the model after \d+ optimisation steps\n", capsys.readouterr().out
    )
    assert [*tmp_path.iterdir()] == [to]
    (action,) = InferenceSession(str(to)).run(None, {"obs": OBS})
    assert np.array_equal(action, actions_of(trained.directory, "best"))


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ("nowhere", 1, "nowhere holds no checkpoint: the directory does not exist"),
        (". --to policy.pt", 2, "--to must name a file that ends in .npz or .onnx"),
        (". --to p.npz", 2, "ConstantAgent does not consist of torch modules"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    flags: str,
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    description = PolicyOf(ConstantConfig(), spec_from_spaces(OBS_SPACE, Discrete(5))).description
    meta = {"opt_steps": 20, "env_steps": 0, POLICY: description}
    constant_run(tmp_path, {}).save("20", {"model": {"action": np.array(1)}}, meta)
    assert main(["export", *flags.split()]) == code
    assert words in capsys.readouterr().err
