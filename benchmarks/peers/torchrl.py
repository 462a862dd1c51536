"""TorchRL: collectors, SAC and DQN losses, replay buffers."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
import torchrl
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer
from torchrl.envs.utils import ExplorationType
from torchrl.modules import EGreedyModule

from benchmarks.peers.interface import (
    ATARI,
    CARTPOLE,
    CHEETAH,
    PENDULUM,
    PER_BATCH,
    PER_ROWS,
    REPLAY_ROWS,
    SIZES,
    Request,
    Sizes,
    make_rows,
    measure_once,
    rate,
    report,
)
from benchmarks.peers.race import GOALS, Race
from benchmarks.peers.torchrl_parts import (
    Learner,
    LearnerConfig,
    make_envs,
    make_greedy_net,
    make_policy,
    make_replay,
    make_td,
)

SAMPLING: dict[str, dict[str, Any]] = {
    CARTPOLE: {"collector": "async", "workers": 2, "kind": "serial", "envs": 16, "threads": 1},
    CHEETAH: {"collector": "async", "workers": 2, "kind": "serial", "envs": 16, "threads": 1},
    ATARI: {"collector": "async", "workers": 2, "kind": "serial", "envs": 16, "threads": 1},
}
ENV: dict[str, dict[str, Any]] = {
    CARTPOLE: {"kind": "serial", "envs": 16, "threads": 1},
    CHEETAH: {"kind": "parallel", "envs": 4, "threads": 1},
    ATARI: {"kind": "parallel", "envs": 4, "threads": 1},
}

TURN_STEPS = 64

LIMITS = {CARTPOLE: 1.0, PENDULUM: 2.0}
"""Of actions."""


def sampling(asked: Request) -> None:
    """Collect batches of transitions."""
    settings = {**SAMPLING[asked.env], **asked.settings}
    torch.set_num_threads(asked.threads or settings["threads"])
    torch.manual_seed(asked.seed)
    make = partial(make_envs, asked.env, settings["kind"], settings["envs"])
    frames = TURN_STEPS * settings["envs"]
    policy = make_policy(asked.env)
    if settings["collector"] == "single":
        collector = Collector(make, policy, frames_per_batch=frames, total_frames=-1)
    elif settings["collector"] == "sync":
        workers = settings["workers"]
        collector = MultiSyncCollector(
            [make] * workers,
            policy,
            frames_per_batch=frames * workers,
            total_frames=-1,
            cat_results=0,
        )
    else:
        collector = MultiAsyncCollector(
            [make] * settings["workers"], policy, frames_per_batch=frames, total_frames=-1
        )
    batches = iter(collector)
    value = rate(lambda: next(batches).numel(), asked.seconds)
    _report(asked, value, settings)
    collector.shutdown()


def env(asked: Request) -> None:
    """Roll out random actions."""
    settings = {**ENV[asked.env], **asked.settings}
    torch.set_num_threads(asked.threads or settings["threads"])
    envs = make_envs(asked.env, settings["kind"], settings["envs"])
    actions = [envs.full_action_spec.rand() for _ in range(TURN_STEPS)]
    state = envs.reset()

    def turn() -> int:
        nonlocal state
        for action in actions:
            _, state = envs.step_and_maybe_reset(state.update(action))
        return TURN_STEPS * int(settings["envs"])

    value = rate(turn, asked.seconds)
    _report(asked, value, settings)
    envs.close()


def updates(asked: Request) -> None:
    """Optimise from a full replay buffer."""
    sizes, discrete = SIZES[asked.stage], asked.stage == "updates-dqn"
    found = {"threads": 1, "rows": REPLAY_ROWS, "compile": False}
    settings: dict[str, Any] = {**found, **asked.settings}
    torch.set_num_threads(asked.threads or settings["threads"])
    torch.manual_seed(asked.seed)
    learner = Learner(LearnerConfig(sizes=sizes, discrete=discrete, compile=settings["compile"]))
    replay = make_replay(settings["rows"], sizes.batch)
    replay.extend(make_td(make_rows(sizes, settings["rows"], discrete=discrete)))

    def turn() -> int:
        learner.update(replay.sample())
        return 1

    _report(asked, rate(turn, asked.seconds), settings)


def prioritized(asked: Request) -> None:
    """Sample by priority, and set the priorities of what was sampled."""
    settings = {"alpha": 0.6, "beta": 0.4, "threads": asked.threads or 1, **asked.settings}
    torch.set_num_threads(settings["threads"])
    replay = TensorDictPrioritizedReplayBuffer(
        alpha=settings["alpha"],
        beta=settings["beta"],
        storage=LazyTensorStorage(PER_ROWS),
        batch_size=PER_BATCH,
    )
    replay.extend(make_td(make_rows(SIZES["updates-dqn"], PER_ROWS, discrete=True)))
    errors = itertools.cycle(torch.rand(100, PER_BATCH).unbind())

    def turn() -> int:
        batch = replay.sample()
        replay.update_priority(batch["index"], next(errors))
        return 1

    turn()
    _report(asked, rate(turn, asked.seconds), settings)


DQN_SETTINGS: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch": 64,
    "hidden": [256, 256],
    # As Stable-Baselines3 comes to: every 10 environment steps, none of them between updates.
    "target_every": 128,
    "learning_starts": 1000,
    "env_steps": 256,
    "opt_steps": 128,
    "decay_env_steps": 8000,
    "threads": 1,
}
SAC_SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "batch": 256,
    "hidden": [256, 256],
    "learning_starts": 200,
    "env_steps": 1,
    "opt_steps": 1,
    "threads": 2,
}
"""Those that Stable-Baselines3 is tuned with: better than the examples' own."""


def score(asked: Request) -> None:
    """Train with one environment until the score is reached."""
    goal, discrete = GOALS[asked.stage], asked.stage == "score-dqn"
    settings = {**(DQN_SETTINGS if discrete else SAC_SETTINGS), **asked.settings}
    torch.set_num_threads(asked.threads or settings["threads"])
    torch.manual_seed(asked.seed)
    learner = _make_learner(goal.env, settings, discrete=discrete)
    replay = make_replay(REPLAY_ROWS, settings["batch"])
    explore = EGreedyModule(
        learner.spec, annealing_num_steps=settings.get("decay_env_steps", 1), eps_end=0.04
    )
    collector = Collector(
        partial(make_envs, goal.env, "serial", 1),
        TensorDictSequential(learner.actor, explore) if discrete else learner.actor,
        frames_per_batch=settings["env_steps"],
        total_frames=-1,
        init_random_frames=settings["learning_starts"],
        exploration_type=ExplorationType.RANDOM,
    )
    greedy = make_greedy_net(learner, LIMITS[goal.env])
    race = Race(goal, asked.seconds)
    env_steps, opt_steps = 0, 0
    for batch in collector:
        env_steps += batch.numel()
        replay.extend(batch.reshape(-1).exclude("collector"))
        explore.step(batch.numel())
        for _ in range(settings["opt_steps"] if env_steps >= settings["learning_starts"] else 0):
            learner.update(replay.sample())
            opt_steps += 1
        if race.over(greedy, opt_steps):
            break
    report(
        asked,
        peer="torchrl",
        version=torchrl.__version__,
        value=race.seconds,
        settings=settings,
        note=race.note(),
        details=race.details(env_steps, opt_steps),
    )
    collector.shutdown()


def _make_learner(env_id: str, settings: dict[str, Any], *, discrete: bool) -> Learner:
    hidden = (settings["hidden"][0], settings["hidden"][1])
    obs, actions = {CARTPOLE: (4, 2), PENDULUM: (3, 1)}[env_id]
    return Learner(
        LearnerConfig(
            sizes=Sizes(obs=obs, actions=actions, hidden=hidden, batch=settings["batch"]),
            discrete=discrete,
            learning_rate=settings["learning_rate"],
            target_every=settings.get("target_every", 1),
            action_limit=LIMITS[env_id],
        )
    )


def _report(asked: Request, value: float, settings: dict[str, Any]) -> None:
    report(asked, peer="torchrl", version=torchrl.__version__, value=value, settings=settings)


STAGES = {
    "sampling": sampling,
    "env": env,
    "updates-sac": updates,
    "updates-dqn": updates,
    "per": prioritized,
    "score-dqn": score,
    "score-sac": score,
}


if __name__ == "__main__":
    measure_once(__doc__, STAGES)
