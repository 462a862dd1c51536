"""Stages beside other frameworks, where they are installed: the same work, by each in turn.

A peer takes the place of the limit, so a ratio above 100 % says how much faster asyncrl is. Both
sides have the same environments, widths, batches and torch threads. Another peer is one more entry
of `PEERS`.
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
    """Return optimisation steps of Stable-Baselines3, from a full replay."""
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
    """Return environment steps of Stable-Baselines3: rollouts of PPO, in one process."""
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
    """What another framework does in one stage."""

    make: Callable[[Load], Callable[[], int]]
    """Makes ready what is done again and again, and says each time how much it was."""

    words: str
    """What it is."""


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
"""Those that are measured where they are installed."""

PEER_STAGES: Mapping[str, Callable[[Load], Stage]] = {
    "sample": sample_stage,
    "learner": learner_stage,
}
"""Stage that peers have, too -> what makes asyncrl's side of it."""


def peer_stages(stage: str, load: Load) -> Iterator[Stage]:
    """Yield one of the stages `sample` and `learner`, beside each peer that is installed.

    Observations must be one array of numbers; beside others nothing is measured.
    """
    observation = load.spec.observation
    if not isinstance(observation, BoxSpec) or len(observation.shape) != 1:
        return
    for peer in PEERS:
        if peer.is_installed and stage in peer.stages:
            yield _beside(stage, peer, _as_peers_learn(load))


def _beside(stage: str, peer: BenchPeer, load: Load) -> Stage:
    """Put a peer in the place of a stage's limit."""
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
    """Let DQN compute what others do: one network chooses and rates, and is copied now and then."""
    if not isinstance(load.agent, DQNConfig):
        return load
    peers = {"double": False, "loss": "huber", "tau": 0.0, "target_interval_opt_steps": 2500}
    return replace(load, agent=replace(load.agent, **peers))  # type: ignore[arg-type]  # by name
