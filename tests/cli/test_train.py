"""`asyncrl train` from end to end: what it takes, what it leaves in the run directory."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import shutil
import socket
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.parts.exploration import Softmax
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.cli import run_directory as _run_directory
from asyncrl.cli import tune as tune_command
from asyncrl.cli.main import main
from asyncrl.cli.run_directory import run_dir_made
from asyncrl.cli.train import _run_dir, parse
from asyncrl.core.errors import ConfigError
from asyncrl.learner.train_result import TrainResult
from asyncrl.metrics.machine import machine
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.presets import preset, preset_lines
from asyncrl.run.run_config import RunConfig
from asyncrl.run.yaml_file import load_yaml, save_yaml
from asyncrl.tools.bench.tuner import Plan, SearchSpace, TrialRecord, Tuning
from examples.own_torch_agent import QRDQNConfig
from tests.cli.conftest import Trained
from tests.cli.console import TINY, misbehaving_env, run
from tests.tools.bench.worlds import World
from tests.tools.report.runs import made_run

SUMMARY = """
    starts stop_reason wall_s env_steps opt_steps env_steps_per_s opt_steps_per_s best_by best_score
    best_opt_steps last_score evaluations seconds_to_stop_bar learner_shares actor_shares ledger
    actors setup resumed_at_s start_up_s end_s samples_per_insert cpu_percent machine_cpu_percent
    verdict children_cpu_percent throttled_percent hosts lag_at_insert lag_when_sampled
    lag_histogram agent evaluation_share
""".split()


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def test_help_lists_the_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{name}: {line}" in shown for name, line in preset_lines().items())


def flags_of_help(capsys: pytest.CaptureFixture[str], *argv: str) -> set[str]:
    assert main(["train", *argv]) == 0
    return set(re.findall(r"^[^\w-]+(--[a-z][\w.-]*)", capsys.readouterr().out, re.MULTILINE))


@pytest.mark.parametrize(
    ("name", "source"), [("dqn", "--actors"), ("ppo", "--actors"), ("iql", "--data")]
)
def test_help_shows_what_people_change_most(
    name: str, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = flags_of_help(capsys, name, "--help")
    assert {"--env", source, "--seed", "--replay.gamma", "--run-dir"} <= common
    assert any(flag.endswith("learning-rate") for flag in common)
    assert 20 <= len(common) <= 32
    assert common < flags_of_help(capsys, name, "--help-all")


@pytest.mark.behaviour(number=12)
def test_help_of_a_custom_agent_shows_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    common = flags_of_help(capsys, "examples.own_torch_agent:QRDQNConfig", "--help")
    own = {f"--agent.{name.replace('_', '-')}" for name in inspect.get_annotations(QRDQNConfig)}
    assert own
    assert own <= common


# --- a run, and what it leaves -------------------------------------------------------------------


@pytest.mark.processes
def test_run_directory_holds_all_of_the_run(trained: Trained) -> None:
    names = {path.name for path in trained.directory.iterdir()}
    kept = {"config.yaml", "run.json", "metrics.jsonl", "checkpoints", "summary.json"}
    assert names - {"warnings.log"} == kept, "a busy machine may have caused a warning"
    assert trained.directory.stat().st_mode & 0o777 == 0o700, "for its user alone"
    lines = (trained.directory / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert all({"env_steps", "opt_steps", "wall_s"} <= set(record) for record in records)
    assert [r["opt_steps"] for r in records] == sorted(r["opt_steps"] for r in records)
    assert records[-1]["opt_steps"] == 300
    assert {"eval_reward", "agent/loss"} <= {name for record in records for name in record}
    checkpoints = Checkpointer(trained.directory / "checkpoints")
    summary = read_json(trained.directory / "summary.json")
    best, last = checkpoints.load("best"), checkpoints.load("300")
    assert best.meta["score"] == summary["best_score"]
    assert best.meta["opt_steps"] == summary["best_opt_steps"]
    assert set(last.groups) == {"agent", "model", "replay"}
    assert set(last.groups["model"]) == set(best.groups["model"])


@pytest.mark.processes
def test_start_of_a_run_is_kept_with_it(trained: Trained) -> None:
    (start,) = read_json(trained.directory / "run.json")["starts"]
    began = datetime.fromisoformat(start["time"]).timestamp()
    first = json.loads((trained.directory / "metrics.jsonl").read_text().partition("\n")[0])
    assert began <= first["time"] <= time.time()
    assert start["agent"] == "dqn"
    assert start["command"].startswith("asyncrl train dqn --")
    assert start["command"].endswith("--max-opt-steps 300 --run-dir runs/x")
    assert start["host"] == socket.gethostname()
    assert start["directory"] == str(trained.directory.parents[1])
    assert start["commit"] is None, "it is in no repository"
    assert start["machine"] == machine()
    assert read_json(trained.directory / "summary.json")["starts"] == [start]


@pytest.mark.skipif(not shutil.which("git"), reason="there is no git")
def test_start_names_the_commit_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("objects", "refs/heads"):
        (tmp_path / ".git" / name).mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git/refs/heads/main").write_text("5" * 40 + "\n")
    monkeypatch.chdir(tmp_path)
    assert _run_directory.a_start("dqn", "asyncrl train dqn")["commit"] == "5" * 40


@pytest.mark.processes
@pytest.mark.skipif(find_spec("mlflow") is None, reason="needs the extra mlflow")
def test_run_is_logged_to_mlflow_beside_a_csv_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    flags = ["--mode", "sync", "--max-opt-steps", "60", "--run-dir", "runs/x", "--csv"]
    mlflow_flags = ["--mlflow", "mine", "--record.interval-s", "5"]
    with warnings.catch_warnings(action="ignore"):  # MLflow's and SQLAlchemy's own
        client = import_module("mlflow").MlflowClient(uri)
        experiment = client.create_experiment("mine")  # creates the tables, which takes seconds
        done = run("train", "dqn", *TINY, *flags, *mlflow_flags, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        (logged,) = client.search_runs([experiment])
    assert (logged.info.run_name, logged.info.status) == ("x", "FINISHED")
    assert logged.data.params["agent.hidden"] == "[16]"
    assert logged.data.metrics["opt_steps"] == 60
    assert "agent/loss" in logged.data.metrics
    lines = (tmp_path / "runs/x/metrics.csv").read_text().splitlines()
    assert "agent/loss" in lines[0].split(",")
    assert not (tmp_path / "runs/x/warnings.log").exists()


@pytest.mark.behaviour(number=12)
@pytest.mark.processes
def test_summary_says_how_the_run_went(trained: Trained) -> None:
    summary = read_json(trained.directory / "summary.json")
    assert sorted(summary) == sorted(SUMMARY)
    assert summary["opt_steps"] == 300
    assert summary["stop_reason"] == "300 optimisation steps are done"
    assert summary["seconds_to_stop_bar"] is None
    assert 1.0 <= summary["last_score"] <= summary["best_score"] <= 500.0
    assert summary["opt_steps_per_s"] == pytest.approx(300 / summary["wall_s"])
    assert summary["env_steps_per_s"] == pytest.approx(summary["env_steps"] / summary["wall_s"])
    assert sum(summary["learner_shares"].values()) == pytest.approx(1.0)
    assert sum(summary["actor_shares"].values()) == pytest.approx(1.0)
    ledger = summary["ledger"]
    assert ledger["produced"] == ledger["stored"] == summary["env_steps"] >= 64


@pytest.mark.processes
def test_user_reads_where_results_are_then_progress_then_the_summary(trained: Trained) -> None:
    lines = trained.done.stdout.splitlines()
    assert lines[0].startswith("replay of 5000 transitions")
    assert "MiB of memory" in lines[0]
    assert lines[1] == "training dqn on CartPole-v1, results in runs/x"
    assert any("| env " in line and "| opt 300" in line for line in lines)
    summary = lines[lines.index("run ended: 300 optimisation steps are done") :]
    shown = dict(line.split(maxsplit=1) for line in summary)
    assert shown["results"] == "runs/x"
    assert shown["report"] == "asyncrl report runs/x"
    assert shown["verdict"] == read_json(trained.directory / "summary.json")["verdict"]["sentence"]
    assert trained.done.stderr == ""


OF_ONES_OWN = """
import dataclasses

import gymnasium

from asyncrl.agents.dqn import DQNConfig

@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MyConfig(DQNConfig):
    favourite_number: int = 3

    def build(self, spec, context):
        assert self.favourite_number == 8
        return DQNConfig.build(self, spec, context)

def make(gravity=9.8):
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.gravity = gravity
    return env
"""


@pytest.mark.processes
def test_agent_and_environment_come_from_the_users_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OF_ONES_OWN)
    args = ["--env", "mine:make", "--env-kwargs", "gravity", "1.6", "--max-opt-steps", "20"]
    args += ["--agent.favourite-number", "8", "--seed", "5"]
    done = run("train", "mine:MyConfig", *TINY, *args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert run_dir.name.startswith("MyConfig-mine.make-5-")
    assert read_json(run_dir / "summary.json")["opt_steps"] == 20
    saved = (run_dir / "config.yaml").read_text()
    assert "type: mine:MyConfig" in saved
    assert "gravity: 1.6" in saved


@pytest.mark.fault("F4")
@pytest.mark.processes
def test_actors_own_error_ends_the_run(tmp_path: Path) -> None:
    args = [*misbehaving_env("raise-lost", after=50), "--evaluate.where", "off", "--run-dir", "x"]
    done = run("train", "dqn", *TINY, *args, cwd=tmp_path)
    assert done.returncode == 1
    sentence = "actor 0 failed: ValueError: half a \\udcff letter"
    assert done.stderr.startswith(f"asyncrl: error: {sentence} (in step of environment 0 of ")
    assert re.search(r"; at \S+\.py:\d+ in \w+\); the run ends. Fix what ", done.stderr)
    assert done.stderr.endswith(f" (the traceback is in {tmp_path}/x/error.txt)\n")
    assert done.stderr.count("\n") == 1
    written = (tmp_path / "x/error.txt").read_text("utf-8")
    assert 'misbehaving_env.py", line' in written
    assert sentence in written
    assert not (tmp_path / "x/summary.json").exists()


# --- reading the command line --------------------------------------------------------------------


def config_of(*argv: str) -> RunConfig:
    return parse([*argv]).config


def test_kind_of_replay_is_chosen_and_then_has_its_own_flags(tmp_path: Path) -> None:
    flags = "--replay uniform --replay=prioritized --replay.alpha 0.9"
    config = parse(["dqn", *flags.split(), "--replay.capacity", "5000"]).config
    assert config.replay == PrioritizedReplayConfig(capacity=5000, n_step=5, alpha=0.9)
    save_yaml(config, tmp_path / "config.yaml")
    again = parse(["dqn", "--config", str(tmp_path / "config.yaml"), "--replay.beta", "0.5"])
    assert again.config.replay == PrioritizedReplayConfig(
        capacity=5000, n_step=5, alpha=0.9, beta=0.5
    )


def test_kind_of_replay_is_one_of_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"--replay: .*prioritized.*'sorted'"):
        parse(["dqn", "--replay", "sorted"])
    with pytest.raises(ConfigError, match=r"unknown flag --replay\.alpha"):  # prioritized replay's
        parse(["dqn", "--replay.alpha", "0.9"])


def test_arguments_of_the_environment_keep_their_types() -> None:
    words = "yes True size 3 speed 0.5 name tall".split()
    config = config_of("dqn", "--env-kwargs", *words)
    assert config.env_kwargs == {"yes": True, "size": 3, "speed": 0.5, "name": "tall"}
    assert config_of("dqn", "--eval-env-kwargs", "size", "4").eval_env_kwargs == {"size": 4}


def test_arguments_by_a_flag_replace_those_of_a_file(tmp_path: Path) -> None:
    path, held = tmp_path / "config.yaml", {"maps": ["a", "b"]}
    save_yaml(RunConfig(env_kwargs=held, eval_env_kwargs=held), path)
    config = config_of("dqn", "--config", str(path), "--env-kwargs", "size", "3")
    assert (config.env_kwargs, config.eval_env_kwargs) == ({"size": 3}, held)
    config = config_of("dqn", "--config", str(path), "--eval-env-kwargs", "size", "3")
    assert (config.env_kwargs, config.eval_env_kwargs) == (held, {"size": 3})
    assert config_of("dqn", "--config", str(path), "--env-kwargs").env_kwargs == {}


@pytest.mark.parametrize("write", ["--config {}", "--config nothing --config={}"])
def test_file_gives_the_defaults_of_flags(write: str, tmp_path: Path) -> None:
    config = RunConfig(
        agent=DQNConfig(hidden=(5, 6), exploration=Softmax()),
        env_kwargs={"maps": ["a", "b"]},
        actors=4,
        stop_at_return=100.0,
    )
    path = tmp_path / "config.yaml"
    save_yaml(config, path)
    argv = ["dqn", *write.format(path).split()]
    assert config_of(*argv) == config == load_yaml(RunConfig, path)
    changed = config_of(*argv, "--actors", "1", "--agent.hidden", "9")
    assert changed.agent == DQNConfig(hidden=(9,), exploration=Softmax())
    assert (changed.actors, changed.stop_at_return) == (1, 100.0)


PART = """
max_env_steps: 1000
trainer:
  batch_size: 48
agent:
  hidden: [32]
env_kwargs:
  frame_skip: 2
"""


def test_file_that_says_a_part_leaves_the_rest_to_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "part.yaml"
    path.write_text(PART)
    start = preset("dqn-atari")
    assert isinstance(start.agent, DQNConfig)
    assert config_of("dqn-atari", "--config", str(path)) == replace(
        start,
        max_env_steps=1000,
        trainer=replace(start.trainer, batch_size=48),
        agent=replace(start.agent, hidden=(32,)),
        env_kwargs={"frame_skip": 2},
    )
    path.write_text("max_env_steps: 1000\n")
    config = config_of("sac", "--config", str(path))
    assert config == replace(preset("sac"), max_env_steps=1000)


def test_file_that_names_a_class_says_all_about_that_part(tmp_path: Path) -> None:
    path = tmp_path / "part.yaml"
    path.write_text("replay: {type: asyncrl.replay.uniform:UniformReplayConfig, gamma: 1}")
    config = config_of("rainbow", "--config", str(path))
    assert config.replay == UniformReplayConfig(gamma=1.0), "not n_step of the preset's other one"
    assert config_of("dqn", "--config", str(path)).replay == UniformReplayConfig(
        gamma=1.0, n_step=5
    )
    path.write_text("replay: {type: nowhere:Replay}")
    with pytest.raises(ConfigError, match=r"part.yaml: replay.type: 'nowhere:Replay'"):
        config_of("dqn", "--config", str(path))


@pytest.mark.behaviour(number=65)
def test_steps_are_profiled_if_asked(tmp_path: Path) -> None:
    flags = ["--launcher", "thread", "--max-opt-steps", "60", "--profile-opt-steps", "5"]
    run_dir = tmp_path / "it"
    assert main(["train", "dqn", *TINY, *flags, "--run-dir", str(run_dir)]) == 0
    assert read_json(run_dir / "profile.json")["traceEvents"]


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ("--profile-opt-steps -1", "--profile-opt-steps must be 0"),
        ("--ranks.patience-s=4", "set ranks.patience_s in the file"),
        ("--parts.stop x", "set parts.stop in the file"),
        ("--hosts.host-timeout-s 4", "--hosts.host-timeout-s .* --launcher to hosts or ray"),
        ("--inference server --ray.hosts 2", "--ray.hosts .* --launcher to ray"),
        ("--serving.max-batch 4", "--serving.max-batch .* --inference to learner or server"),
        ("--config {}/mine.yaml", "actors"),
    ],
)
def test_flags_of_a_run_are_checked(flags: str, names: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("actors: many\n")
    with pytest.raises(ConfigError, match=names):
        parse(["dqn", *flags.format(tmp_path).split()])


def test_run_directory_is_never_used_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("{}")
    assert main(["train", "dqn", "--run-dir", str(tmp_path)]) == 2
    text = f"{tmp_path} already holds a run; choose another --run-dir, or resume the run: "
    assert capsys.readouterr().err == f"asyncrl: error: {text}asyncrl resume {tmp_path}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_directory_of_an_active_run_is_refused_without_advice_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Popen(["/bin/sh", "-c", "read end", "asyncrl"], stdin=PIPE) as active:
        made_run(tmp_path / "x", RunConfig(), pid=active.pid)
        assert main(["train", "dqn", "--run-dir", str(tmp_path / "x")]) == 2
        active.communicate()
    err = capsys.readouterr().err
    assert "holds a run, which is active; choose another --run-dir, or watch it: " in err
    assert err.endswith(f"asyncrl report {tmp_path}/x --live\n")


def test_directory_that_was_there_stays_after_an_early_error(tmp_path: Path) -> None:
    assert main(["train", "dqn", "--env", "Nope-v0", "--run-dir", str(tmp_path)]) == 2
    assert not list(tmp_path.iterdir())


def test_runs_of_one_second_get_a_directory_each(tmp_path: Path) -> None:
    together = threading.Barrier(12, timeout=20)

    def run_dir(_: int) -> str:
        together.wait()
        with run_dir_made(tmp_path / "runs/it", numbered=True) as path:
            together.wait()  # none of them is over while others begin
            (path / "config.yaml").touch()
        return path.name

    with ThreadPoolExecutor(12) as pool:
        names = sorted(pool.map(run_dir, range(12)))
    assert names == sorted(["it", *(f"it-{n}" for n in range(2, 13))])


@pytest.mark.parametrize(
    ("env", "expected"),
    [("ALE/Pong-v5", "dqn-ALE-Pong-v5-3-"), ("my_package.boat:make", "dqn-boat.make-3-")],
)
def test_default_run_directory_is_named_after_the_environment(
    env: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with _run_dir(parse(["dqn", "--env", env, "--seed", "3"])) as path:
        (path / "config.yaml").touch()
    assert path.name.startswith(expected)


def test_place_where_nothing_can_be_made_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["train", "dqn", "--run-dir", str(tmp_path / "file/x")]) == 2
    assert f"cannot make the run directory {tmp_path / 'file/x'}" in capsys.readouterr().err


# --- actors as many as are best ------------------------------------------------------------------


def test_actors_may_be_left_to_the_machine_and_what_flags_give_is_not_chosen() -> None:
    arguments = parse(["dqn", "--actors=auto"])
    assert arguments.auto == SearchSpace()
    assert arguments.config == preset("dqn")
    assert parse(["dqn", "--actors", "3"]).auto is None
    flags = ["--actors", "auto", "--envs_per_actor", "4", "--segment.length=8"]
    assert parse(["dqn", *flags]).auto == SearchSpace(envs=False, length=False)


def test_file_may_leave_actors_to_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("actors: auto\nenvs_per_actor: 3\n")
    arguments = parse(["dqn", "--config", str(path)])
    assert arguments.auto == SearchSpace()
    assert (arguments.config.actors, arguments.config.envs_per_actor) == (2, 3)
    assert parse(["dqn", "--config", str(path), "--actors", "5"]).config.actors == 5


@pytest.mark.processes
def test_choice_is_reported_trained_with_and_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = Plan(actors=1, envs_per_actor=3, segment_length=8)

    def tune(config: RunConfig, *, seconds: float, quiet: bool, **_: Any) -> Any:
        assert seconds <= 60.0
        assert not quiet, "each trial is shown"
        found = TrialRecord(plan=chosen, trial=World().run_plan(chosen))
        tuning = Tuning(start=chosen, chosen=chosen, tried=(found,), took_s=0.0)
        return replace(config, actors=1, envs_per_actor=3), tuning

    monkeypatch.setattr(tune_command, "tune", tune)
    run_dir = tmp_path / "it"
    flags = [*TINY, "--max-opt-steps", "20", "--run-dir", str(run_dir), "--actors", "auto"]
    flags += ["--launcher", "thread"]
    assert main(["train", "dqn", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "choosing the number of actors by short runs, at most 60 s"
    assert lines[1].startswith("chose 1 actor of 3 environments (segments of 8)")
    saved = load_yaml(RunConfig, run_dir / "config.yaml")
    assert (saved.actors, saved.envs_per_actor) == (1, 3)
    assert read_json(run_dir / "summary.json")["setup"]["actors"] == 1


def test_search_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tune(*_: object, **__: object) -> None:
        assert not run_dir.exists()  # which would stay if it were killed now
        raise ConfigError("no such environment")

    monkeypatch.setattr(tune_command, "tune", tune)
    run_dir = tmp_path / "it"
    assert main(["train", "dqn", "--run-dir", str(run_dir), "--actors", "auto"]) == 2
    assert "no such environment" in capsys.readouterr().err
    assert not run_dir.exists()


@pytest.mark.fault("F19")
def test_settings_are_on_disk_before_they_have_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A power cut would else leave an empty file, which would stand for the defaults.
    synced: list[tuple[int, bool]] = []
    path, fsync = tmp_path / "config.yaml", os.fsync

    def note(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    _run_directory.save_config(RunConfig(), tmp_path)
    assert synced == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


def test_summary_has_null_for_values_that_json_lacks(tmp_path: Path) -> None:
    result = TrainResult(
        stop_reason="the loop ended",
        wall_s=1.0,
        env_steps=1,
        opt_steps=1,
        best_score=None,
        best_opt_steps=None,
        last_score=math.nan,
        seconds_to_stop_bar=None,
        learner_shares={},
        actors={"0": {"env_steps": 3.0, "env_restarts": math.inf}},
    )
    _run_directory.save_summary(result, tmp_path, [])

    summary = read_json(tmp_path / "summary.json")
    assert summary["last_score"] is None
    assert summary["actors"] == {"0": {"env_steps": 3.0, "env_restarts": None}}


@pytest.mark.processes
def test_what_constructors_do_to_their_process_does_no_harm_to_a_run(tmp_path: Path) -> None:
    odd = misbehaving_env("thread+chdir+ignore-signals+no-output+spawn-children", at="make")
    flags = [*TINY, *odd, "--max-opt-steps", "20", "--run-dir", "runs/odd"]
    done = run("train", "dqn", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\n  results    runs/odd\n" in done.stdout
    assert read_json(tmp_path / "runs/odd/summary.json")["opt_steps"] == 20


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_constructor_that_ends_its_process_is_a_named_failure(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "odd"
    odd = [*misbehaving_env("exit-0", at="make"), "--run-dir", str(run_dir)]
    assert main(["train", "dqn", "--mode", mode, *odd]) == 1
    assert "building the environment failed: its process exited with code 0" in (
        capsys.readouterr().err
    )
    assert not run_dir.exists()
