"""Rainbow: what improved DQN each by itself, put together.

Hessel et al. (2018), Rainbow: combining improvements in deep reinforcement learning,
https://arxiv.org/abs/1710.02298. Its six parts, and where they are here:

    double Q-learning       `double`, see `dqn.py`
    dueling networks        `dueling`, streams of logits, see `networks.DuelingHead`
    noisy networks          `noisy`, see `parts/networks.py`; no other exploration
    distributions           C51, see `c51.py`
    n-step returns          the replay's `n_step`, 3 in the paper
    prioritized replay      `PrioritizedReplayConfig`; priorities are the rows' cross-entropies

So a Rainbow is a C51 agent with settings of its own, and the rest is a replay. Put together, with a
row's importance w from the replay, its return R of n steps, atoms z and their probabilities p
from noisy weights, and p' of the target network, from noise of its own:

    a* = argmax over a of the sum over i of z_i * p_i(s', a)
    m  = what falls on each atom of p'_j(s', a*) at R + gamma^n * z_j, see `c51.project`
    L  = mean of - w * sum over i of m_i * log p_i(s, a)

An example:

    train_async(RainbowConfig(v_min=0.0, v_max=100.0), make_env,
                AsyncConfig(replay=PrioritizedReplayConfig(n_step=3)))

What differs on purpose:
    The paper's priority is the Kullback-Leibler divergence of prediction and target, which is
    their cross-entropy, the loss, less the target's entropy. Replay's priority exponent is 0.6
    (paper: 0.5), Adam's epsilon 1e-8 (1.5e-4); the target network follows slowly by `tau` instead
    of being copied; the preset's returns have 5 steps (3).
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.agents.c51 import C51Config
from asyncrl.agents.parts.exploration import Exploration


@dataclass(frozen=True, slots=True, kw_only=True)
class RainbowConfig(C51Config):
    """Settings of Rainbow: C51's, with all improvements on."""

    double: bool = True
    """Double Q-learning: the online network chooses the next action, the target network provides
    its distribution."""

    dueling: bool = True
    """Separate streams for the value of a state and the advantages of its actions. Turn it off for
    a custom network."""

    noisy: bool = True
    """Noisy layers after the encoder, with learned noise that is resampled for each act and each
    optimisation step. For a custom network, turn it off and use NoisyLinear in that network."""

    exploration: Exploration | None = None
    """Exploration in addition to noisy layers. None relies on noisy layers alone."""
