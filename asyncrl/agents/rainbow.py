"""Rainbow: six improvements of DQN combined.

Paper: Hessel et al. (2018), Rainbow: combining improvements in deep reinforcement learning,
https://arxiv.org/abs/1710.02298. Its six parts, and where they are here:

    double Q-learning       `double`, see `dqn.py`
    dueling networks        `dueling`, streams of logits, see `networks.DuelingHead`
    noisy networks          `noisy`, see `parts/networks.py`; no other exploration
    distributions           C51, see `c51.py`
    n-step returns          the replay's `n_step`, 3 in the paper
    prioritized replay      `PrioritizedReplayConfig`; priorities are the rows' cross-entropies

Rainbow is thus a C51 agent with other default settings, and a replay. With a row's importance
weight w and n-step return R from the replay, atoms z and their probabilities p from noisy weights,
and p' of the target network with independent noise:

    a* = argmax over a of the sum over i of z_i * p_i(s', a)
    m  = projection of p'_j(s', a*) at R + gamma^n * z_j onto the atoms, see `c51.project`
    L  = mean of - w * sum over i of m_i * log p_i(s, a)

An example:

    train_async(RainbowConfig(v_min=0.0, v_max=100.0), make_env,
                RunConfig(replay=PrioritizedReplayConfig(n_step=3)))

Deviations, on purpose:

* Priorities are the loss, a cross-entropy. The paper's are the Kullback-Leibler divergence of
  prediction and target, which is the loss minus the target's entropy.
* The initial noise of noisy layers is 0.1 (0.5), since a stream of 64 units dies of more.
* The replay's priority exponent is 0.6 (paper: 0.5), and Adam's epsilon 1e-8 (1.5e-4).
* The target network follows by Polyak averaging (`tau`) instead of being copied.
* The preset's returns have 5 steps (3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from asyncrl.agents.c51 import C51Config
from asyncrl.agents.parts.exploration import Exploration
from asyncrl.core.declared import PositiveOrOff


@dataclass(frozen=True, slots=True, kw_only=True)
class RainbowConfig(C51Config):
    """Settings of Rainbow: those of C51, with all improvements on."""

    double: bool = True
    """Double Q-learning: the online network chooses the next action, the target network provides
    its distribution."""

    dueling: bool = True
    """Separate streams for the value of a state and the advantages of its actions. Turn it off for
    a custom network."""

    noisy: bool = True
    """Noisy layers after the encoder, with learned noise that is resampled for each act and each
    optimisation step. For a custom network, turn it off and use NoisyLinear in that network."""

    noisy_sigma: PositiveOrOff = 0.1
    """Initial noise of noisy layers; it is divided by the square root of the layer's inputs. With
    the paper's 0.5, small networks first learn to suppress the noise of hidden layers: nearly all
    units of the advantages become negative in all states, and learn no more."""

    exploration: Exploration | None = None
    """Exploration in addition to noisy layers. None relies on noisy layers alone."""

    wants_priorities: ClassVar[bool] = True
