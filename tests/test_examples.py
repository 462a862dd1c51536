"""The examples run, and do what they say, on a smaller scale where they can."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from asyncrl.core.agent import PolicyContext
from asyncrl.envs.gym import EnvConfig
from asyncrl.export.export import export_policy
from asyncrl.run.run_config import RunConfig
from asyncrl.testing import check_agent
from examples import (
    atari,
    callback,
    dict_observations,
    dqn_cartpole,
    embed,
    mujoco_robots,
    offline,
    other_packages,
    own_actor_critic,
    own_agent,
    own_env,
    own_torch_agent,
    recurrent,
)

pytestmark = pytest.mark.processes

IN_THREADS = (
    atari,
    dict_observations,
    embed,
    mujoco_robots,
    other_packages,
    own_agent,
    own_env,
    recurrent,
)


@pytest.fixture(autouse=True)
def actors_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no actor processes, except in `test_dqn_cartpole`."""
    for example in IN_THREADS:
        monkeypatch.setattr(example, "RunConfig", partial(RunConfig, launcher="thread"))


def test_dqn_cartpole(capsys: pytest.CaptureFixture[str]) -> None:
    result = dqn_cartpole.main(max_opt_steps=30)
    assert result.opt_steps == 30
    assert "env steps" in capsys.readouterr().out


def test_own_agent_learns_the_shortest_way() -> None:
    result = own_agent.main()
    assert result.best_score is not None
    assert result.best_score >= 0.5


def test_own_torch_agent_trains_keeps_its_contract_and_can_be_exported(tmp_path: Path) -> None:
    result = own_torch_agent.main(max_opt_steps=30)
    assert result.opt_steps == 30
    config, spec = own_torch_agent.QRDQNConfig(), EnvConfig(id="CartPole-v1").build().spec
    check_agent(config, spec)
    export_policy(config.build_policy(spec, PolicyContext(seed=0)), spec, tmp_path / "policy.npz")


def test_own_actor_critic_keeps_its_contract() -> None:
    check_agent(own_actor_critic.TD7Config(hidden=(16,)), EnvConfig(id="Pendulum-v1").build().spec)


def test_dict_observations_are_learned_from_all_fields_together() -> None:
    result = dict_observations.main()
    assert result.best_score is not None
    assert result.best_score >= 5.5, "who does not know the goal gets 2"


def test_own_env_is_kept_warm() -> None:
    result = own_env.main()
    assert result.best_score is not None
    assert result.best_score > -15.0, "who heats at random pays 33"


def test_own_env_reports_the_numbers_that_the_guide_records() -> None:
    env = own_env.make_room(power=1.5)
    env.reset(seed=0)
    info = env.step(np.int64(1))[4]
    assert info["energy"] == 1.5
    assert info["gap"] > 0.0


def test_atari_learns_from_stacked_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ale_py")
    # Games take long to begin.
    monkeypatch.setattr(atari, "EnvConfig", lambda **given: EnvConfig(**{**given, "n_envs": 2}))
    result = atari.main(3, warm_up=100, episode_steps=20)
    assert result.opt_steps == 3
    assert result.last_score is not None


def test_mujoco_saves_what_it_learns(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    result = mujoco_robots.main("InvertedPendulum-v5", 10, tmp_path)
    assert result.opt_steps == 10
    assert (tmp_path / "best").exists()
    again = mujoco_robots.main("InvertedPendulum-v5", 12, tmp_path, resume=True)
    assert again.opt_steps == 12


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("minigrid", "minigrid"),
        ("dm_control", "shimmy"),
        ("robotics", "gymnasium_robotics"),
        ("goals", "gymnasium_robotics"),
    ],
)
def test_environments_of_other_packages_are_learned_from(name: str, package: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    result = other_packages.main(name, max_opt_steps=5)
    assert result.opt_steps == 5
    assert result.last_score is not None


def test_recurrent_learns_from_sequences() -> None:
    result = recurrent.main(max_opt_steps=5)
    assert result.opt_steps == 5
    assert result.last_score is not None


def test_embed(capsys: pytest.CaptureFixture[str]) -> None:
    assert embed.main(opt_steps=200).opt_steps == 200
    assert "200 steps" in capsys.readouterr().out


def test_callback_evaluates_and_records(capsys: pytest.CaptureFixture[str]) -> None:
    result = callback.main(opt_steps=60, every=20)
    assert result.opt_steps in {20, 40, 60}, "a large gain may end it"
    assert result.last_score is not None
    assert "after 20 optimisation steps" in capsys.readouterr().out


def test_offline_learns_from_what_a_run_has_saved() -> None:
    result = offline.main(env_steps=1500, opt_steps=100)
    assert result.opt_steps == 100
    assert result.last_score is not None
