"""What Stable-Baselines3 is asked for beside a run: equal settings, those of its zoo, and variants.

Settings that it does not have, such as a ladder of epsilons or actions that last, become the
nearest that it has.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from asyncrl.agents.dqn import DQNConfig
from asyncrl.agents.parts.exploration import EpsilonGreedy, EpsilonLadder
from asyncrl.agents.parts.networks import small_image_network
from asyncrl.agents.parts.schedules import Schedule, value_at
from asyncrl.agents.ppo import PPOConfig
from asyncrl.agents.sac import SACConfig
from asyncrl.replay.hindsight import HindsightReplayConfig
from asyncrl.run.run_config import RunConfig
from benchmarks.learning.rows import Row

_ZOO = Path(__file__).parents[1] / "peers" / "zoo.yaml"
_FOREVER = 10**9
_NO_CLIP = 1e9
_MIN_SEGMENT = 32
"""Shorter segments would lose PPO more in what it learns than they win in speed."""

_Several = tuple[str, int, int]
_ON_POLICY: Sequence[_Several] = (
    *(("dummy", n, 1) for n in (8, 16, 32, 64, 128)),
    ("dummy", 32, 2),
    *(("subproc", n, 1) for n in (2, 8)),
)
_OFF_POLICY: Sequence[_Several] = (
    *(("dummy", n, 1) for n in (1, 4, 8)),
    ("dummy", 4, 2),
    *(("subproc", n, 1) for n in (2, 4)),
)
_OF_THE_ZOO: Sequence[_Several] = (("dummy", 0, 1), ("dummy", 0, 2), ("subproc", 0, 1))
"""Class of the vector, environments and threads; 0 leaves the zoo's number of environments."""

Asked = dict[str, Any]


def equal(config: RunConfig) -> Asked:
    """Return the settings of the same algorithm; empty if Stable-Baselines3 does not have it."""
    match config.agent:
        case PPOConfig():
            name, settings = "ppo", _ppo(config, config.agent)
        case DQNConfig():
            name, settings = "dqn", _dqn(config, config.agent)
        case SACConfig():
            name, settings = "sac", _sac(config, config.agent)
        case _:
            return {}
    agent = config.agent
    # Stable-Baselines3 keeps what critics learn near one by the rewards alone.
    norm_reward = agent.normalize_reward or getattr(agent, "normalize_values", False)
    hindsight = None
    if isinstance(config.replay, HindsightReplayConfig):
        share = config.replay.relabelled
        hindsight = {
            "goal_selection_strategy": "future",
            "n_sampled_goal": round(share / (1.0 - share)),
        }
    return {
        "algorithm": name,
        "total_steps": _FOREVER,
        "normalize": {"norm_obs": agent.normalize_obs, "norm_reward": norm_reward},
        "hindsight": hindsight,
        "settings": {n: v.points if isinstance(v, Schedule) else v for n, v in settings.items()},
    }


def zoo(row: Row, settings: Mapping[str, Any]) -> Asked:
    """Return the zoo's settings of a task for the algorithm of a run; empty if it lists none."""
    name, listed = settings["algorithm"], yaml.safe_load(_ZOO.read_text(encoding="utf-8"))
    given = listed.get(name, {}).get(row.zoo_env or row.env)
    if given is None:
        return {}
    both, steps = given.pop("normalize", False), given.pop("n_timesteps")
    falling = {name: [(0, given[name]), (steps, 0.0)] for name in given.pop("linear", [])}
    return {
        "algorithm": name,
        "n_envs": given.pop("n_envs", 1),
        "total_steps": steps,
        "normalize": {"norm_obs": both, "norm_reward": both},
        "hindsight": given.pop("hindsight", None),
        "settings": given | falling,
    }


def variants(asked: Mapping[str, Any], *, is_zoo: bool) -> Iterator[Asked]:
    """Yield settings that differ only in the vector of environments and in threads."""
    on_policy = asked["algorithm"] == "ppo"
    for vector, n_envs, threads in (
        _OF_THE_ZOO if is_zoo else _ON_POLICY if on_policy else _OFF_POLICY
    ):
        settings, count = dict(asked["settings"]), n_envs or asked["n_envs"]
        if on_policy and not is_zoo:
            batch = settings.pop("batch")
            settings["n_steps"] = batch // count
            if settings["n_steps"] < _MIN_SEGMENT or batch % count:
                continue
        elif not is_zoo:
            settings |= _turn(settings.pop("opt_steps_per_env_step"), count)
            if "target_interval_opt_steps" in settings:
                settings |= _target(settings, count)
        several = {"vector": vector, "n_envs": count, "threads": threads}
        yield {**asked, **several, "settings": settings}


def _ppo(config: RunConfig, agent: PPOConfig) -> Asked:
    batch = config.trainer.batch_size
    pixels = config.env.startswith("ALE/")
    hidden = [*agent.hidden]
    width = _behind_pixels(hidden) if pixels else {"net_arch": {"pi": hidden, "vf": hidden}}
    if agent.network is small_image_network:
        width = {**_behind_pixels([256]), "features_extractor_class": "small"}
    return {
        "batch": batch,
        "batch_size": batch // agent.minibatches,
        "n_epochs": agent.epochs,
        "learning_rate": agent.learning_rate,
        "gamma": getattr(config.replay, "gamma", 0.99),
        "gae_lambda": agent.lambda_,
        "clip_range": agent.clip,
        "ent_coef": value_at(agent.entropy_weight, 0),
        "vf_coef": agent.value_weight,
        "max_grad_norm": agent.max_grad_norm or _NO_CLIP,
        "policy_kwargs": {
            **width,
            "activation_fn": agent.activation,
            "log_std_init": agent.initial_log_std,
        },
    }


def _dqn(config: RunConfig, agent: DQNConfig) -> Asked:
    hidden = [*agent.hidden]
    pixels = config.env.startswith("ALE/")
    final, decay = _epsilon(config, agent)
    return {
        **_replayed(config),
        "learning_rate": agent.learning_rate,
        "max_grad_norm": agent.max_grad_norm or _NO_CLIP,
        "tau": agent.tau or 1.0,
        "target_interval_opt_steps": 1 if agent.tau else agent.target_interval_opt_steps,
        "exploration_fraction": max(1, decay) / _FOREVER,
        "exploration_final_eps": final,
        "policy_kwargs": _behind_pixels(hidden) if pixels else {"net_arch": hidden},
    }


def _sac(config: RunConfig, agent: SACConfig) -> Asked:
    """Both of its networks have one learning rate there: that of the critics."""
    return {
        **_replayed(config),
        "learning_rate": agent.critic_learning_rate,
        "tau": agent.tau,
        "ent_coef": "auto" if agent.alpha is None else agent.alpha,
        "policy_kwargs": {"net_arch": [*agent.hidden]},
    }


def _replayed(config: RunConfig) -> Asked:
    replay: Any = config.replay
    batch = config.trainer.batch_size
    return {
        "opt_steps_per_env_step": (config.limiter.samples_per_insert or batch) / batch,
        "batch_size": batch,
        "buffer_size": replay.capacity,
        "learning_starts": config.limiter.min_size,
        "gamma": replay.gamma,
        "n_steps": getattr(replay, "n_step", 1),
    }


def _behind_pixels(hidden: list[int]) -> Asked:
    """Return a network whose first hidden layer belongs to the convolutions."""
    return {"features_extractor_kwargs": {"features_dim": hidden[0]}, "net_arch": hidden[1:]}


def _epsilon(config: RunConfig, agent: DQNConfig) -> tuple[float, int]:
    """Return the mean epsilon at the end, and the environment steps until then."""
    match agent.exploration:
        case EpsilonLadder(base=base, alpha=alpha, decay_env_steps=decay):
            n, highest = config.actors * config.envs_per_actor, value_at(base, _FOREVER)
            rungs = [highest ** (1.0 + alpha * i / max(1, n - 1)) for i in range(n)]
            return statistics.fmean(rungs), decay
        case EpsilonGreedy(epsilon=epsilon):
            return value_at(epsilon, _FOREVER), 10_000
        case _:
            return 0.05, 10_000


def _turn(ratio: float, n_envs: int) -> Asked:
    """Return how many steps of each environment and of the optimiser alternate."""
    steps = max(1, math.ceil(1.0 / (ratio * n_envs)))
    return {"train_freq": steps, "gradient_steps": max(1, round(ratio * n_envs * steps))}


def _target(settings: Asked, n_envs: int) -> Asked:
    """Return when the target network follows; it does so between turns there."""
    every = settings.pop("target_interval_opt_steps")
    turns = max(1, round(every / settings["gradient_steps"]))
    interval = turns * settings["train_freq"] * n_envs
    if every > 1:
        return {"target_update_interval": interval}
    tau = 1.0 - (1.0 - settings["tau"]) ** settings["gradient_steps"]
    return {"target_update_interval": interval, "tau": tau}
