"""A recorded run is computed again: the same bits, from its order and its experience alone."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.agents.sac import SACConfig
from asyncrl.checkpoint.record_file import RecordFile, read_records
from asyncrl.core.agent import AgentConfig
from asyncrl.core.callback import Callback, Training
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.replay_buffer import ReplayBufferConfig
from asyncrl.core.segment import SegmentConfig
from asyncrl.core.settings import to_plain
from asyncrl.core.types import Params
from asyncrl.learner.async_trainer import AsyncTrainer, AsyncTrainerConfig
from asyncrl.learner.order_log import Kind
from asyncrl.learner.rate_limiter import RateLimiterConfig
from asyncrl.learner.run_services import RecordConfig
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.sequences import PrioritizedSequenceReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.training.asynchronous import build_async_trainer
from asyncrl.training.common_config import EvaluationConfig
from asyncrl.training.replayed import build_replay_trainer, replay_run
from asyncrl.training.run import build_trainer
from asyncrl.training.run_config import RunConfig

DQN = DQNConfig(hidden=(8,), device="cpu")
ONCE = RateLimiterConfig(samples_per_insert=1.0)
STEPS = 23


def config_of(
    agent: AgentConfig = DQN,
    replay: ReplayBufferConfig | None = None,
    env: str = "CartPole-v1",
    **more: Any,
) -> RunConfig:
    settings: dict[str, Any] = {
        "limiter": RateLimiterConfig(samples_per_insert=8.0, min_size=64),
        "trainer": AsyncTrainerConfig(batch_size=16, sync_interval_opt_steps=5),
        "max_opt_steps": STEPS,
        **more,
    }
    return RunConfig(
        seed=5,
        agent=agent,
        env=env,
        envs_per_actor=2,
        launcher="thread",
        segment=SegmentConfig(length=8),
        replay=replay or UniformReplayConfig(capacity=200),
        evaluate=EvaluationConfig(where="off"),
        record=RecordConfig(interval_s=0.0),
        **settings,
    )


def recorded(config: RunConfig, path: Path) -> AsyncTrainer:
    """Train with two actors; return the trainer."""
    trainer = build_trainer(config, record_order=path)
    assert isinstance(trainer, AsyncTrainer)
    assert trainer.train().opt_steps == config.max_opt_steps
    return trainer


def assert_same_bits(state: Params, again: Params) -> None:
    assert state.keys() == again.keys()
    for name, value in state.items():
        assert value.tobytes() == again[name].tobytes(), name


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of DQN."""
    directory = tmp_path_factory.mktemp("run")
    recorded(config_of(), directory / "order")
    return directory


CASES = [
    pytest.param(config_of(), id="dqn"),
    pytest.param(config_of(SACConfig(hidden=(8, 8), device="cpu"), env="Pendulum-v1"), id="sac"),
    pytest.param(config_of(replay=PrioritizedReplayConfig(capacity=200)), id="prioritized"),
    pytest.param(
        config_of(
            PPOConfig(hidden=(8,), epochs=1, device="cpu"),
            TrajectoryQueueConfig(),
            limiter=ONCE,
            max_opt_steps=6,
        ),
        id="ppo",
    ),
    pytest.param(
        config_of(
            R2D2Config(hidden=(8,), memory_units=4, device="cpu"),
            PrioritizedSequenceReplayConfig(capacity=400, sequence_length=4),
            trainer=AsyncTrainerConfig(batch_size=4, sync_interval_opt_steps=5),
        ),
        id="r2d2",
    ),
]


@pytest.mark.parametrize("config", CASES)
def test_replay_computes_the_same_bits(config: RunConfig, tmp_path: Path) -> None:
    trainer = recorded(config, tmp_path / "order")
    replayed = replay_run(tmp_path)
    assert replayed.opt_steps == config.max_opt_steps
    assert replayed.interrupter.reason == "the run ended here"
    assert replayed.differs is None
    assert replayed.published >= 1 + replayed.opt_steps // 5
    assert replayed.stored == trainer.proxy.ledger.balance().stored
    assert_same_bits(trainer.agent.state(), replayed.agent.state())
    state: Any = trainer.proxy.buffer
    if config.agent is DQN:  # what is sampled next is the same, too
        again: Any = replayed.buffer
        assert_same_bits(state.state(), again.state())


def test_until_stops_there_and_the_run_can_be_continued_step_by_step(run_dir: Path) -> None:
    whole = replay_run(run_dir)
    assert replay_run(run_dir, until=7).opt_steps == 7
    trainer = build_replay_trainer(run_dir / "order")
    steps = []
    with trainer:
        trainer.run_until(7)
        for batch in trainer.batches():
            assert batch["reward"].shape == (16,)
            trainer.learn(batch)
            steps.append(trainer.opt_steps)
    assert steps == [*range(8, STEPS + 1)]
    assert_same_bits(whole.agent.state(), trainer.agent.state())


def test_replay_takes_the_callbacks_of_the_run(tmp_path: Path) -> None:
    class Noisy(Callback):
        """Changes the agent, which the order does not say."""

        def step(self, trainer: Training) -> None:
            agent: Any = trainer.agent
            if trainer.opt_steps == 10:
                next(agent.model.parameters()).data.add_(1.0)

    config = config_of()
    trainer = build_trainer(config, record_order=tmp_path / "order", callbacks=[Noisy()])
    trainer.train()
    assert_same_bits(trainer.agent.state(), replay_run(tmp_path, callbacks=[Noisy()]).agent.state())
    differs = replay_run(tmp_path).differs
    assert differs is not None
    assert differs[0] < 11 <= differs[1] + 1


def test_threads_of_the_run_are_used_again(tmp_path: Path) -> None:
    class Doubles(Callback):
        """Changes torch's number of threads, as the thread tuner does."""

        def step(self, trainer: Training) -> None:
            torch.set_num_threads(2 if trainer.opt_steps >= 10 else 1)

    before = torch.get_num_threads()
    try:
        config = config_of()
        build_trainer(config, record_order=tmp_path / "order", callbacks=[Doubles()]).train()
        used = []
        for until in (10, 11):
            torch.set_num_threads(1)
            replay_run(tmp_path, until=until)
            used.append(torch.get_num_threads())
        assert used == [1, 2]
    finally:
        torch.set_num_threads(before)


def test_run_that_was_built_in_python_is_given_its_agent_and_config(tmp_path: Path) -> None:
    config = config_of()
    make_env = config.env_config().build
    stop = config.stop_condition()
    order = tmp_path / "deep" / "order"
    trainer = build_async_trainer(DQN, make_env, config, stop=stop, record_order=order)
    trainer.train()
    with pytest.raises(ConfigError, match="pass agent= and config="):
        build_replay_trainer(order)
    with pytest.raises(ConfigError, match="another seed"):
        build_replay_trainer(order, DQN, replace(config, seed=6))
    replayed = build_replay_trainer(order, DQN, config)
    replayed.train()
    assert_same_bits(trainer.agent.state(), replayed.agent.state())


def rewritten(run_dir: Path, path: Path, change: Any) -> Path:
    """Write a run's records again, with a changed head."""
    with RecordFile(path) as file:
        for record in read_records(run_dir / "order"):
            payload = record.payload
            if record.kind == Kind.HEAD:
                head = json.loads(payload)
                change(head)
                payload = json.dumps(head).encode()
            file.append(record.kind, payload)
    return path


def test_model_that_differs_is_named_with_its_optimisation_step(
    run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def change(head: dict[str, Any]) -> None:
        head["config"]["agent"]["learning_rate"] *= 2

    trainer = build_replay_trainer(rewritten(run_dir, tmp_path / "order", change))
    trainer.train()
    assert trainer.opt_steps == STEPS
    assert trainer.differs is not None
    equal, different = trainer.differs
    assert (equal, different) == (0, min(5, different))
    assert f"published at optimisation step {different} differs" in caplog.text


def test_other_machine_is_told(
    run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def change(head: dict[str, Any]) -> None:
        head["machine"]["torch"] = "1.0"

    build_replay_trainer(run_dir / "order").close()
    assert not caplog.text
    build_replay_trainer(rewritten(run_dir, tmp_path / "order", change)).close()
    assert "its bits may differ here: torch 1.0 -> " in caplog.text


def test_record_that_was_cut_off_is_replayed_to_its_last_whole_record(
    run_dir: Path, tmp_path: Path
) -> None:
    whole = (run_dir / "order").read_bytes()
    (tmp_path / "order").write_bytes(whole[:-30])  # into the last events
    trainer = replay_run(tmp_path)
    assert trainer.differs is None
    assert trainer.opt_steps < STEPS or trainer.interrupter.reason is not None
    assert "before the end of the run" in str(trainer.interrupter.reason)


def test_damage_is_named_with_record_place_and_optimisation_step(
    run_dir: Path, tmp_path: Path
) -> None:
    *_, last, _ = (r for r in read_records(run_dir / "order") if r.kind != Kind.MESSAGE)
    damaged = bytearray((run_dir / "order").read_bytes())
    damaged[last.at + 20] ^= 1
    (tmp_path / "order").write_bytes(damaged)
    trainer = build_replay_trainer(tmp_path / "order")
    words = rf"record {last.number}, .* byte {last.at}, .* up to optimisation step \d+"
    with pytest.raises(CheckpointError, match=words):
        trainer.train()
    assert replay_run(tmp_path, until=trainer.opt_steps).opt_steps == trainer.opt_steps


def test_replay_neither_builds_environments_nor_needs_them(run_dir: Path, tmp_path: Path) -> None:
    def change(head: dict[str, Any]) -> None:
        head["config"] |= {"env": "NotInstalled-v0", "env_schedule": {"100": {"gravity": 1.0}}}

    trainer = build_replay_trainer(rewritten(run_dir, tmp_path / "order", change))
    trainer.train()
    assert (trainer.opt_steps, trainer.differs) == (STEPS, None)


@pytest.mark.parametrize("mode", ["sync", "offline"])
def test_other_modes_record_no_order(mode: Any, tmp_path: Path) -> None:
    config = replace(config_of(), mode=mode, data=tmp_path if mode == "offline" else None)
    with pytest.raises(ConfigError, match=f"no effect with mode={mode}"):
        build_trainer(config, record_order=tmp_path / "order")


def test_resumed_run_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="order of a resumed run cannot be recorded"):
        build_trainer(
            config_of(), record_order=tmp_path / "order", checkpoint_dir=tmp_path, resume=True
        )


def test_order_must_be_a_new_file(run_dir: Path) -> None:
    with pytest.raises(ConfigError, match="order of an earlier run"):
        build_trainer(config_of(), record_order=run_dir / "order")
    with pytest.raises(ConfigError, match="must be the path of a new file, got 7"):
        build_trainer(config_of(), record_order=7)  # type: ignore[arg-type]


def test_settings_in_the_file_are_those_of_the_run(run_dir: Path) -> None:
    head = build_replay_trainer(run_dir / "order").order.head
    assert head["config"] == json.loads(json.dumps(to_plain(config_of())))
    assert head["machine"]["numpy"] == np.__version__


@pytest.fixture(autouse=True)
def warnings_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
