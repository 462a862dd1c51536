"""Compares stages with other frameworks that are installed: the same work, measured in turns.

A peer replaces the limit, so a ratio above 100 % means that asyncrl is faster. Both sides have the
same environments, widths, batches and torch threads. To add a peer, add an entry to `PEERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from asyncrl.agents.dqn import DQNConfig
from asyncrl.bench.load import Load
from asyncrl.bench.measure import Repeating, Stage
from asyncrl.bench.stage_learner import learner_stage
from asyncrl.bench.stage_runs import sample_stage
from asyncrl.core.env import BoxSpec

_REPLAY_ROWS = 100_000
_ROLLOUT_STEPS = 32
_UPDATES = 20
_FOREVER = 2**40


def sb3_updates(load: Load) -> Callable[[], int]:
    """Return a function that optimises with Stable-Baselines3 from a full replay."""
    from stable_baselines3 import DQN, SAC  # noqa: PLC0415  # where it is installed
    from stable_baselines3.common.logger import configure  # noqa: PLC0415  # where it is installed

    workload = load.workload
    model = (DQN if isinstance(load.agent, DQNConfig) else SAC)(
        "MlpPolicy",
        _sb3_envs(load, 1),
        batch_size=workload.batch_size,
        buffer_size=min(load.capacity, _REPLAY_ROWS),
        policy_kwargs={"net_arch": list(workload.hidden)},
        device=workload.device,
    )
    model.set_logger(configure(None, []))
    buffer, random = model.replay_buffer, np.random.default_rng(0)
    for column in (buffer.observations, buffer.next_observations, buffer.rewards):
        column[:] = random.standard_normal(column.shape)
    buffer.actions[:] = random.integers(0, 2, buffer.actions.shape)
    buffer.full = True

    def turn() -> int:
        model.train(gradient_steps=_UPDATES, batch_size=workload.batch_size)
        return _UPDATES

    return turn


def sb3_rollouts(load: Load) -> Callable[[], int]:
    """Return a function that makes rollouts with the PPO of Stable-Baselines3, in one process."""
    from stable_baselines3 import PPO  # noqa: PLC0415  # where it is installed

    workload = load.workload
    n_envs = workload.actors * workload.envs_per_actor
    model = PPO(
        "MlpPolicy",
        _sb3_envs(load, n_envs),
        n_steps=_ROLLOUT_STEPS,
        batch_size=_ROLLOUT_STEPS * n_envs,
        policy_kwargs={"net_arch": list(workload.hidden)},
        device="cpu",
    )
    _, callback = model._setup_learn(_FOREVER)  # noqa: SLF001  # as its `learn` begins

    def turn() -> int:
        model.collect_rollouts(
            model.env, callback, model.rollout_buffer, n_rollout_steps=_ROLLOUT_STEPS
        )
        return _ROLLOUT_STEPS * n_envs

    return turn


def _sb3_envs(load: Load, n_envs: int) -> Any:  # noqa: ANN401  # untyped there
    from stable_baselines3.common.vec_env import DummyVecEnv  # noqa: PLC0415  # where it is installed

    return DummyVecEnv([load.workload.env_config.make_plain] * n_envs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerWork:
    """The work of another framework in one stage."""

    make: Callable[[Load], Callable[[], int]]
    """Returns a function that does some work and returns its amount."""

    words: str
    """Description of the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPeer:
    """Another framework."""

    module: str
    package: str
    title: str
    stages: Mapping[str, PeerWork]

    @property
    def is_installed(self) -> bool:
        """Whether it can be imported here."""
        return find_spec(self.module) is not None


PEERS = (
    BenchPeer(
        module="stable_baselines3",
        package="stable-baselines3",
        title="Stable-Baselines3",
        stages={
            "sample": PeerWork(make=sb3_rollouts, words="PPO's rollouts, 1 process"),
            "learner": PeerWork(make=sb3_updates, words="its DQN or SAC, same widths and batch"),
        },
    ),
)
"""The peers that are measured if they are installed."""

PEER_STAGES: Mapping[str, Callable[[Load], Stage]] = {
    "sample": sample_stage,
    "learner": learner_stage,
}
"""Stages that peers have too -> functions that make asyncrl's side."""


def peer_stages(stage: str, load: Load) -> Iterator[Stage]:
    """Yield the stage `sample` or `learner`, compared with each installed peer.

    Yields nothing unless observations are one array of numbers.
    """
    observation = load.spec.observation
    if not isinstance(observation, BoxSpec) or len(observation.shape) != 1:
        return
    for peer in PEERS:
        if peer.is_installed and stage in peer.stages:
            yield _beside(stage, peer, _as_peers_learn(load))


def _beside(stage: str, peer: BenchPeer, load: Load) -> Stage:
    """Return a stage whose limit is replaced by a peer."""
    ours, work, workload = PEER_STAGES[stage](load), peer.stages[stage], load.workload
    theirs = Repeating(work.make(load), warm_up_seconds=workload.warm_up_seconds)
    name = f"{peer.title} {version(peer.package)}"
    quantity = replace(ours.quantities[0], case=f"beside {name}", limit_is=work.words)
    return replace(
        ours,
        quantities=[quantity],
        limit=lambda: [theirs.rate(workload.seconds / ours.slices)],
    )


def _as_peers_learn(load: Load) -> Load:
    """Set DQN to plain Q-learning with periodic copies of the target network, as the peers do."""
    if not isinstance(load.agent, DQNConfig):
        return load
    peers = {"double": False, "loss": "huber", "tau": 0.0, "target_interval_opt_steps": 2500}
    return replace(load, agent=replace(load.agent, **peers))  # type: ignore[arg-type]  # by name
