"""`asyncrl doctor`: a report and an exit code, also of what takes its process down."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from asyncrl.cli.doctor import DoctorArguments, parse, run
from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Columns
from asyncrl.envs.gym import EnvConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.run_config import RunConfig
from asyncrl.run.yaml_file import save_yaml
from asyncrl.tools.doctor.environment import examine
from asyncrl.tools.doctor.findings import Finding
from examples.own_agent import Table, TableConfig
from tests.cli import console

pytestmark = pytest.mark.processes

PATIENT = "tests.envs.broken_envs:make"
UNASKED = "ended with exit code 0 before the checks were done"


class BrokenTable(Table):
    """Raises instead of returning."""

    def opt(self, batch: Columns) -> Any:
        super().opt(batch)


class BrokenConfig(TableConfig):
    def build(self, spec: EnvSpec, context: PolicyContext) -> BrokenTable:
        return BrokenTable(self, 4, context.seed)


def arguments(**settings: Any) -> DoctorArguments:
    return DoctorArguments(**{"env": PATIENT, "seconds": 0.5, "envs_per_actor": 2, **settings})


def found(seconds: float = 0.5, patience_s: float = 60.0, **flaws: Any) -> Iterator[Finding]:
    config = EnvConfig(id=PATIENT, kwargs=flaws, n_envs=2)
    return examine(config, seconds=seconds, seed=0, patience_s=patience_s)


def test_good_environment_is_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments(env="CartPole-v1")) == 0
    out = capsys.readouterr().out
    assert "CartPole-v1 is ready for training: 0 failures" in out
    assert "ok    factory        can be sent" in out


def test_agents_are_asked_whether_they_keep_their_contract(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(arguments(env="examples.own_agent:TableConfig")) == 0
    assert "examples.own_agent:TableConfig is ready for training" in capsys.readouterr().out
    assert run(arguments(env=f"{__name__}:BrokenConfig")) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "fail opt" in out
    assert "`opt` of BrokenTable must return numbers by name, got None; return" in out


def test_without_an_environment_the_machine_is_looked_at(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = run(parse([]))
    out = capsys.readouterr().out
    assert code == (1 if "\nfail" in out else 0)
    assert "this machine is " in out
    assert all(check in out for check in ("cores", "memory", "descriptors", "actors", "torch"))


def test_machine_is_asked_whether_a_run_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    save_yaml(RunConfig(actors=3, replay=UniformReplayConfig(capacity=10**12)), path)
    assert run(parse(["--config", str(path), "--json"])) == 1
    report = json.loads(capsys.readouterr().out)
    (memory,) = (found for found in report["findings"] if found["check"] == "memory")
    assert memory["level"] == "fail"
    assert f"the replay of {path} takes " in memory["seen"]
    assert "its 3 actors" in memory["seen"]
    assert "replay.capacity" in memory["advice"]


@pytest.mark.parametrize(
    ("settings", "held"),
    [
        ("agent: {type: 'asyncrl.agents.ppo:PPOConfig'}", "its 2 actors"),
        ("mode: sync", "when it is full"),
    ],
)
def test_settings_that_a_file_lacks_are_those_of_its_run(
    settings: str, held: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(settings)
    run(parse(["--config", str(path), "--json"]))
    report = json.loads(capsys.readouterr().out)
    (memory,) = (found for found in report["findings"] if found["check"] == "memory")
    assert held in memory["seen"]
    assert ("actors" in memory["seen"]) == ("actors" in held)


@pytest.mark.parametrize(
    "flags", ["CartPole-v1 --preset dqn", "--preset dqn --config x.yaml", "CartPole-v1 --config x"]
)
def test_machine_and_environment_are_not_asked_at_once(flags: str) -> None:
    with pytest.raises(ConfigError, match="give only one of ENV"):
        parse(flags.split())


def test_bad_environment_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments(env_kwargs={"error": "the physics exploded"}, json=True)) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["fit"] is False
    assert report["env"] == PATIENT
    (found,) = [f for f in report["findings"] if f["level"] == "fail"]
    assert re.fullmatch(r"RuntimeError: the physics exploded; at .*\.py:\d+ in step", found["seen"])
    assert found["advice"]


@pytest.mark.parametrize(
    ("do", "how"),
    [
        ("segfault", r"was killed by SIGSEGV .*; at .*faults_in_process\.py:\d+ in .*"),
        ("exit-0", UNASKED),
    ],
)
def test_process_that_dies_is_reported_with_its_place(do: str, how: str) -> None:
    *before, last = found(do=do)
    assert (last.level, last.check) == ("fail", "two copies")
    assert re.fullmatch(f"the process of the environment or agent {how}", last.seen)
    assert [f.level for f in before] == ["ok"] * len(before)


def test_examination_ends_with_the_doctor(tmp_path: Path) -> None:
    flags = ["--env-kwargs", "do", "sleep", "--seconds", "60"]
    with console.started("doctor", PATIENT, *flags, cwd=tmp_path) as doctor:
        assert doctor.stdout
        assert "make" in doctor.stdout.readline()
        processes = psutil.Process(doctor.pid).children(recursive=True)
        assert len(processes) >= 2, "it plays by now"
        doctor.send_signal(signal.SIGKILL)
        doctor.wait(20)
    assert psutil.wait_procs(processes, timeout=20)[1] == []


def test_words_of_the_environment_are_no_part_of_the_report(tmp_path: Path) -> None:
    code = "import gymnasium\ndef make():\n print('loud')\n return gymnasium.make('CartPole-v1')\n"
    (tmp_path / "mine.py").write_text(code)
    done = console.run("doctor", "mine:make", "--seconds", "0.5", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fit"] is True
    assert "loud" in done.stderr
