"""One command line, one configuration, three modes; the same for `resume` and `eval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.cli.main import main
from asyncrl.cli.train import parse, setup_of
from asyncrl.core.errors import ConfigError
from asyncrl.metrics.verdict import Facts, judge
from asyncrl.run.presets import preset
from asyncrl.run.run_config import RunConfig
from asyncrl.run.yaml_file import save_yaml
from tests.cli.console import misbehaving_env
from tests.support.fakes import ConstantConfig

FLAGS = """
    --quiet --segment.length 4 --limiter.min-size 64 --replay.capacity 5000
    --trainer.batch-size 16 --evaluate.interval-opt-steps 20
    --save.interval-opt-steps 20 --evaluate.play.episodes 2 --agent.hidden 16
""".split()


def summary(run_dir: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return read


def command(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("sync") / "run"
    flags = ["--mode=sync", "--actors=1", "--max-opt-steps=30", "--run-dir", str(run_dir)]
    command("train", "dqn", *FLAGS, *flags)
    return run_dir


def test_synchronous_run_leaves_what_any_run_leaves(run_dir: Path) -> None:
    names = {path.name for path in run_dir.iterdir()}
    kept = {"config.yaml", "run.json", "metrics.jsonl", "checkpoints", "summary.json"}
    assert names - {"warnings.log"} == kept, "a busy machine may have caused a warning"
    written = summary(run_dir)
    assert (written["opt_steps"], written["stop_reason"]) == (30, "30 optimisation steps are done")
    assert written["best_score"] is not None
    per_step = 16 / preset("dqn").limiter.samples_per_insert  # environment steps for a batch
    assert written["env_steps"] == pytest.approx(64 + 30 * per_step, abs=32), "as its limiter says"


@pytest.mark.parametrize(
    ("flags", "shares", "words"),
    [
        (["dqn", "--mode=sync"], {"act": 0.3, "opt": 0.6}, "one process: acting takes 30 %"),
        (["iql", "--data=x"], {"opt": 0.9}, "learner only: optimising takes 90 %"),
    ],
)
def test_live_view_knows_that_other_modes_have_no_actors(
    flags: list[str], shares: dict[str, float], words: str
) -> None:
    busy = {"wall_s": 9.0, "opt_steps": 9.0, "system/machine_cpu_percent": 100.0}
    values = busy | {f"share/learner_{name}": share for name, share in shares.items()}
    verdict = judge(Facts.of_record(values, setup_of(parse(flags).config)))
    assert verdict.sentence.startswith(words)


@pytest.mark.behaviour(number=36)
def test_synchronous_run_is_the_same_twice_and_continues(run_dir: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    flags = ["--mode=sync", "--actors=1", "--max-opt-steps=20", "--run-dir", again]
    command("train", "dqn", *FLAGS, *flags)
    command("resume", again, "--max-opt-steps", 30, "--quiet")
    models = [
        Checkpointer(one / "checkpoints").load("30").groups["model"] for one in (run_dir, again)
    ]
    assert all((models[0][name] == models[1][name]).all() for name in models[0])


def test_offline_run_learns_from_a_run_and_continues(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offline = tmp_path / "offline"
    file = tmp_path / "curriculum.yaml"  # of the run that made the data: it has no effect
    file.write_text("env_schedule: {0: {sutton_barto_reward: true}}")
    flags = ["--config", file, "--data", run_dir / "checkpoints", "--max-opt-steps", 20]
    fewer = [flag for flag in FLAGS if flag not in {"--segment.length", "4"}]
    fewer = [flag for flag in fewer if flag not in {"--limiter.min-size", "64"}]
    command("train", "iql", *fewer, *flags, "--run-dir", offline)
    assert (summary(offline)["opt_steps"], summary(offline)["env_steps"]) == (20, 0)
    command("resume", offline, "--max-opt-steps", 25, "--quiet")
    assert summary(offline)["opt_steps"] == 25
    capsys.readouterr()
    command("eval", offline, "--episodes", 2, "--json")
    assert json.loads(capsys.readouterr().out)["episodes"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("dqn --mode offline --data x --actors 3", "--actors has no effect with --mode=offline"),
        ("dqn --launcher ray --actors=auto", "measures this machine, but hosts start the actors"),
        ("dqn --mode sync --proxy.overflow=drop", "--proxy.overflow has no effect"),
        ("dqn --mode sync --listen tcp://127.0.0.1", "--listen has no effect"),
        ("dqn --mode sync --trainer.max-lag-s 9", "--trainer.max-lag-s has no effect"),
        ("iql", "mode=offline learns from data, but data is not set; set it"),
        ("dqn --data x", "--data has no effect with --mode=async.* offline"),
        ("dqn --mode sync --limiter.samples-per-insert 0", "does not define how often mode=sync"),
    ],
)
def test_what_has_no_meaning_in_a_mode_is_refused(words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(words.split())


def test_file_with_served_inference_gives_a_synchronous_run(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("inference: server\n")
    words = ["dqn", "--config", str(file), "--mode", "sync"]
    with pytest.raises(ConfigError, match="--inference has no effect with --mode=sync"):
        parse(words)
    assert parse([*words, "--inference", "actor"]).config.mode == "sync"


# --- a file that says which agent -----------------------------------------------------------------


def test_file_may_say_which_agent_it_is_about(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    save_yaml(RunConfig(agent=ConstantConfig(), seed=4), path)
    arguments = parse(["--config", str(path), "--seed", "5"])
    assert arguments.config == RunConfig(agent=ConstantConfig(), seed=5)
    assert arguments.agent == "tests.support.fakes:ConstantConfig"


@pytest.mark.parametrize("text", ["", "agent: {hidden: [3]}\n"])
def test_file_without_an_agent_is_reported(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"has no agent\.type.*asyncrl train PRESET"):
        parse(["--config", str(path)])


# --- other names ------------------------------------------------------------------------------


def test_setting_with_another_name_in_a_file_is_answered_with_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("env: {n_envs: 3}")
    with pytest.raises(ConfigError, match=r"env\.n_envs: .*did you mean envs_per_actor\?"):
        parse(["dqn", "--config", str(tmp_path / "config.yaml")])


RENAMES = """
import os

import gymnasium

from tests.support.helpers import wait_until

class Renames(gymnasium.Wrapper):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 200 and not os.path.exists("runs/elsewhere"):
            wait_until(lambda: os.path.exists("runs/mine/metrics.jsonl"), 20, "records")
            os.rename("runs/mine", "runs/elsewhere")
        return super().step(action)

def make():
    return Renames(gymnasium.make("CartPole-v1"))
"""


@pytest.mark.fault("F39")
def test_run_whose_directory_was_renamed_is_all_there_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "renames.py").write_text(RENAMES)
    flags = ["--env", "renames:make", "--envs-per-actor", "1"]
    flags += ["--max-opt-steps", "60", "--actors", "1"]
    command("train", "dqn", *FLAGS, *flags, "--mode", "sync", "--run-dir", "runs/mine")
    mine = Path("runs/mine")
    names = {"config.yaml", "run.json", "metrics.jsonl", "checkpoints"}
    assert {path.name for path in Path("runs/elsewhere").iterdir()} == names
    assert {path.name for path in mine.iterdir()} == {*names, "summary.json", "warnings.log"}
    assert Checkpointer(mine / "checkpoints").latest() == "60"
    assert caplog.text.count("was removed or renamed") == 2
    command("eval", mine, "--episodes", 1)
    command("resume", mine, "--max-opt-steps", 70)
    assert summary(mine)["opt_steps"] == 70
    assert [start["command"].split()[1] for start in summary(mine)["starts"]] == ["train", "resume"]


def test_run_that_has_learned_nothing_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags = ["--mode", "sync", "--max-env-steps", "32", "--run-dir", str(tmp_path / "run")]
    assert main(["train", "dqn", *FLAGS, *flags]) == 1
    assert "the run has learned nothing: 32 environment steps are done, and 32" in caplog.text
    assert "the warm-up needs 32 more, about" in caplog.text
    assert summary(tmp_path / "run")["opt_steps"] == 0


def test_environment_that_exits_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*misbehaving_env("sys-exit", after=20), "--run-dir", str(tmp_path)]
    assert main(["train", "dqn", *FLAGS, "--mode", "sync", *flags]) == 1
    assert "sys.exit(0)" in capsys.readouterr().err
    assert "SystemExit: 0" in (tmp_path / "error.txt").read_text()
