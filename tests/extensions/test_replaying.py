"""A recorded run is computed again: the same bits, from its order and its experience alone."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.r2d2 import R2D2Config
from asyncrl.agents.sac import SACConfig
from asyncrl.checkpoint.checkpoint import Checkpointer
from asyncrl.checkpoint.record_file import RecordFile, read_records
from asyncrl.core.agent import AgentConfig
from asyncrl.core.callback import Callback, Training
from asyncrl.core.errors import CheckpointError, ConfigError
from asyncrl.core.named import Named
from asyncrl.core.replay_buffer import ReplayBufferConfig
from asyncrl.core.segment import SegmentConfig
from asyncrl.core.types import Params
from asyncrl.extensions.order.log import Kind
from asyncrl.extensions.order.recording import record_order
from asyncrl.extensions.order.replaying import build_replay_trainer, replay_run
from asyncrl.learner.async_trainer import AsyncTrainer
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig
from asyncrl.learner.run_services import RecordConfig, SaveConfig
from asyncrl.learner.trainer import Trainer
from asyncrl.replay.hindsight import HindsightReplayConfig
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.sequences import PrioritizedSequenceReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.named_parts import NamedParts
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.run.train import build_trainer

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


def recorded(config: RunConfig, path: Path, **parts: Any) -> AsyncTrainer:
    """Train with two actors; return the trainer."""
    trainer = build_trainer(config, observers=[record_order(path)], **parts)
    assert isinstance(trainer, AsyncTrainer)
    assert trainer.train().opt_steps == config.max_opt_steps
    return trainer


def assert_same_bits(state: Params, again: Params) -> None:
    assert state.keys() == again.keys()
    for name, value in state.items():
        assert value.tobytes() == again[name].tobytes(), name


def replays(directory: Path, trainer: Trainer, **parts: Any) -> Any:
    """Replay a run to its end, without a difference; return the trainer of the replay."""
    replayed = replay_run(directory, **parts)
    assert (replayed.opt_steps, replayed.source.differs) == (trainer.opt_steps, None)
    assert_same_bits(trainer.agent.state(), replayed.agent.state())
    return replayed


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of DQN."""
    directory = tmp_path_factory.mktemp("run")
    recorded(config_of(), directory / "order")
    return directory


CASES = [
    pytest.param(config_of(), id="dqn"),
    pytest.param(
        config_of(
            SACConfig(hidden=(8, 8), device="cpu"),
            PrioritizedReplayConfig(capacity=200),
            "Pendulum-v1",
        ),
        id="sac, prioritized",
    ),
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
            limiter=RateLimiterConfig(samples_per_insert=128.0, min_size=4),
            trainer=AsyncTrainerConfig(batch_size=4, sync_interval_opt_steps=5),
        ),
        id="r2d2",
    ),
]


@pytest.mark.parametrize("config", CASES)
def test_replay_computes_the_same_bits(config: RunConfig, tmp_path: Path) -> None:
    trainer = recorded(config, tmp_path / "order")
    replayed = replays(tmp_path, trainer)
    assert replayed.interrupter.reason == "the run ended here"
    assert replayed.source.compared >= 1
    assert replayed.source.stored == trainer.proxy.ledger.balance().stored
    state: Any = trainer.proxy.buffer
    if config.agent is DQN:  # what is sampled next is the same, too
        again: Any = replayed.source.buffer
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


def places(directory: Path) -> Any:
    """Return where a run records its order and saves checkpoints."""
    return {
        "observers": [record_order(directory / "order")],
        "checkpoint_dir": directory / "checkpoints",
    }


class Noisy(Callback):
    """Changes the agent, which the order does not say."""

    def step(self, trainer: Training) -> None:
        agent: Any = trainer.agent
        if trainer.opt_steps == 10:
            next(agent.model.parameters()).data.add_(1.0)


class Asking(Callback):
    """Asks for what a replay neither can do nor needs."""

    def step(self, trainer: Training) -> None:
        if trainer.opt_steps == 10:
            trainer.set_env_kwargs({"sutton_barto_reward": True})
            trainer.save()
            trainer.evaluate(env_kwargs={}, greedy=True)


def test_callbacks_may_ask_for_environments_checkpoints_and_scores(tmp_path: Path) -> None:
    parts = NamedParts(callbacks=(Named(f"{__name__}:Asking"),))
    trainer = build_trainer(config_of(parts=parts), **places(tmp_path))
    assert trainer.train().opt_steps == STEPS
    replays(tmp_path, trainer)


class Nearer(Callback):
    """Lets every place count as near every goal."""

    def step(self, trainer: Training) -> None:
        if trainer.opt_steps == 10:
            trainer.set_env_kwargs({"near": 3.0})


@pytest.mark.parametrize(
    ("resume", "callbacks"), [(True, ()), ("without replay", (Named(f"{__name__}:Nearer"),))]
)
def test_rewards_of_hindsight_are_those_of_changed_environments(
    tmp_path: Path, resume: Any, callbacks: tuple[Named, ...]
) -> None:
    config = config_of(
        SACConfig(hidden=(8,), device="cpu"),
        HindsightReplayConfig(capacity=200, horizon=8),
        "tests.support.reach:Reach",
        parts=NamedParts(callbacks=callbacks),
    )
    where = places(tmp_path)
    build_trainer(config, **where).train()
    longer = replace(config, max_opt_steps=STEPS + 11, env_kwargs={"near": 1.0})
    trainer = build_trainer(longer, **where, resume=resume)
    assert trainer.train().opt_steps == STEPS + 11
    replays(tmp_path, trainer)


def test_replay_takes_the_callbacks_of_the_run_and_names_the_model_that_differs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = recorded(config_of(), tmp_path / "order", callbacks=[Noisy()])
    replays(tmp_path, trainer, callbacks=[Noisy()])
    assert not caplog.text
    replayed = replay_run(tmp_path)
    assert (replayed.opt_steps, replayed.source.differs is None) == (STEPS, False)
    equal, different = replayed.source.differs or (0, 0)
    assert equal < 11 <= different + 1
    assert f"published at optimisation step {different} differs" in caplog.text


def test_threads_of_the_run_are_used_again(tmp_path: Path) -> None:
    class Doubles(Callback):
        """Changes torch's number of threads, as a learner does when cores become free."""

        def step(self, trainer: Training) -> None:
            torch.set_num_threads(2 if trainer.opt_steps >= 10 else 1)

    before = torch.get_num_threads()
    try:
        recorded(config_of(), tmp_path / "order", callbacks=[Doubles()])
        used = []
        for until in (10, 11):
            torch.set_num_threads(1)
            replay_run(tmp_path, until=until)
            used.append(torch.get_num_threads())
        assert used == [1, 2]
    finally:
        torch.set_num_threads(before)


def test_agent_with_objects_that_no_file_holds_is_given_again(tmp_path: Path) -> None:
    agent = replace(DQN, network=lambda _: torch.nn.Linear(4, 2))
    config, order = config_of(), tmp_path / "order"
    make_env, stop = config.env_config().build, config.stop_condition()
    trainer = recorded(config, order, agent=agent, env=make_env, stop=stop)
    with pytest.raises(ConfigError, match=r"agent\.network.*; pass agent= and config="):
        build_replay_trainer(order)
    with pytest.raises(ConfigError, match="another seed"):
        build_replay_trainer(order, agent, replace(config, seed=6))
    replayed = build_replay_trainer(order, agent, config)
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


def test_other_machine_is_reported(
    run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def change(head: dict[str, Any]) -> None:
        head["machine"]["torch"] = "1.0"

    build_replay_trainer(run_dir / "order").close()
    assert not caplog.text
    build_replay_trainer(rewritten(run_dir, tmp_path / "order", change)).close()
    assert "its bits may differ here: torch 1.0 -> " in caplog.text


def test_damage_is_named_with_record_place_and_optimisation_step(
    run_dir: Path, tmp_path: Path
) -> None:
    *_, last, _ = (r for r in read_records(run_dir / "order") if r.kind != Kind.MESSAGE)
    damaged = bytearray((run_dir / "order").read_bytes())
    damaged[last.at + 4] ^= 1  # of its header: what follows may be only two bytes
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
    assert (trainer.opt_steps, trainer.source.differs) == (STEPS, None)


@pytest.mark.parametrize(
    ("mode", "order", "names"),
    [("sync", "order", "mode=sync"), ("offline", "order", "mode=offline"), ("async", 7, "got 7")],
)
def test_order_that_cannot_be_recorded_is_refused(mode: Any, order: Any, names: str) -> None:
    data = Path("none") if mode == "offline" else None
    with pytest.raises(ConfigError, match=names):
        build_trainer(replace(config_of(), mode=mode, data=data), observers=[record_order(order)])


@pytest.mark.parametrize("resume", [True, "without replay"])
def test_resumed_run_is_replayed_from_its_beginning(tmp_path: Path, resume: Any) -> None:
    """It was resumed twice from its first checkpoint: the part between led to nothing."""
    config = config_of(replay=PrioritizedReplayConfig(capacity=200, beta_samples=1000))
    build_trainer(config, **places(tmp_path)).train()
    for more in (7, 11):
        longer = replace(config, max_opt_steps=STEPS + more, save=SaveConfig(keep=0))
        trainer: Any = build_trainer(longer, **places(tmp_path), resume=resume)
        beta = trainer.proxy.buffer._priorities.beta
        assert beta == pytest.approx(0.4 + 0.6 * STEPS * 16 / 1000)
        trainer.train()
        if more == 7:
            for newer in {*Checkpointer(tmp_path / "checkpoints").names()} - {str(STEPS)}:
                (tmp_path / "checkpoints" / newer).unlink()  # a link
    assert len([*tmp_path.glob("order*")]) == 3
    assert trainer.opt_steps == STEPS + 11
    assert len(replays(tmp_path, trainer).source.order.parts) == 2


def test_run_that_branches_off_or_was_not_recorded_before_is_not_recorded(tmp_path: Path) -> None:
    plain, first, branch = (tmp_path / name for name in ("plain", "first", "branch"))
    config = config_of(max_opt_steps=3)
    build_trainer(config, checkpoint_dir=plain).train()
    recorded(config, tmp_path / "order", checkpoint_dir=first)
    for where, resume, names in (
        (plain, True, "whose order was not recorded"),
        (branch, first / "3", "branches off into another directory"),
    ):
        order = tmp_path / f"{where.name}-order"
        with pytest.raises(ConfigError, match=names):
            recorded(config, order, checkpoint_dir=where, resume=resume)


def test_settings_changed_by_a_resume_are_reported_and_its_checkpoint_is_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build_trainer(config_of(), **places(tmp_path)).train()
    other = config_of(replace(DQN, learning_rate=0.5), max_opt_steps=STEPS + 11)
    build_trainer(other, **places(tmp_path), resume=True).train()
    caplog.clear()
    trainer = replay_run(tmp_path)
    assert trainer.opt_steps == STEPS + 11
    assert f"resumed at optimisation step {STEPS} with changed settings" in caplog.text
    assert "agent.learning_rate" in caplog.text
    assert trainer.source.differs is not None
    assert trainer.source.differs[0] <= STEPS < trainer.source.differs[1]
    order = tmp_path / "order"
    order.write_bytes(order.read_bytes()[: -(order.stat().st_size // 2)])
    with pytest.raises(CheckpointError, match="ends before the checkpoint from which"):
        replay_run(tmp_path)


@pytest.fixture(autouse=True)
def warnings_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
