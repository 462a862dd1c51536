"""EnvPool: environments in C++, alone and with a policy in PyTorch in the loop.

It has no algorithms, so `sampling` is the loop that a user would write: half of the environments
step while the policy chooses for the other half, where that is faster than all of them at once.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import envpool  # type: ignore[import-not-found,unused-ignore]  # where the peer is installed
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from benchmarks.peers.interface import (
    ATARI,
    CARTPOLE,
    CHEETAH,
    PIXEL_FEATURES,
    Request,
    Stage,
    Work,
    convolutions,
    measure_once,
)

Array = npt.NDArray[Any]
Act = Callable[[Array], Array]
"""A batch of observations -> one action for each."""

TASKS = {CARTPOLE: "CartPole-v1", CHEETAH: "HalfCheetah-v5", ATARI: "Pong-v5"}
"""Our name -> EnvPool's. Its Pong is grayscale, 84x84, with frame skip 4 and 4 stacked frames."""

TURN_STEPS = 50
"""Steps between two readings of the clock."""


ENV: dict[str, dict[str, Any]] = {
    CARTPOLE: {"envs": 1024, "batch": 1024, "env_threads": 1, "threads": 1},
    CHEETAH: {"envs": 64, "batch": 32, "env_threads": 2, "threads": 1},
    ATARI: {"envs": 32, "batch": 32, "env_threads": 2, "threads": 1},
}
SAMPLING: dict[str, dict[str, Any]] = {
    CARTPOLE: {"envs": 256, "batch": 128, "env_threads": 1, "threads": 1},
    CHEETAH: {"envs": 32, "batch": 16, "env_threads": 2, "threads": 1},
    ATARI: {"envs": 64, "batch": 64, "env_threads": 2, "threads": 1},
}
"""Layout of environments. A step waits for `batch` of them: fewer than `envs` lets the others
step meanwhile. With two threads of torch, those fight with EnvPool's for the cores; CartPole, 256
environments in batches of 128: 1,390,000 with one, 5,300 with two.

Fastest of those tried, in env steps/s on two cores that did other things as well:

Alone: CartPole 16 176,000, 64 382,000, 256 976,000, 1024 1,356,000, 4096 663,000; HalfCheetah 8
36,300, 32 33,800, 64 in halves 39,600 to 70,200, 256 in halves 21,400; Pong 8 2,800, 16 in halves
6,700, 32 7,200, 64 3,700. With the policy: CartPole 64 247,000, 256 in halves 1,390,000, 1024 in
halves 1,058,000, 4096 984,000; HalfCheetah 16 in halves 26,800, 32 in halves 57,800, 64 38,600, 128
in halves 25,400; Pong 16 in halves 1,600, 32 1,000, 64 2,400.
"""


def make_policy(env: str, n_inputs: int, n_outputs: int) -> nn.Module:
    """Make the network: 64x64, for images behind the convolutions of Mnih et al. (2015)."""
    layers: list[nn.Module] = []
    if env == ATARI:
        layers, n_inputs = convolutions(), PIXEL_FEATURES
    layers += [nn.Linear(n_inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, n_outputs))


def make_act(env: str, envs: Any) -> Act:  # noqa: ANN401  # EnvPool is untyped here
    """Return a policy that explores: 1 random action in 20, or Gaussian noise."""
    space = envs.action_space
    discrete = hasattr(space, "n")
    n_outputs = int(space.n) if discrete else int(space.shape[0])
    policy = make_policy(env, int(envs.observation_space.shape[0]), n_outputs)

    def inputs(obs: Array) -> Tensor:
        values = torch.from_numpy(obs).float()
        return values / 255 if env == ATARI else values

    @torch.inference_mode()
    def choose(obs: Array) -> Array:
        best = policy(inputs(obs)).argmax(1)
        chance = torch.randint(n_outputs, best.shape)
        chosen: Array = torch.where(torch.rand(best.shape) < 0.05, chance, best).numpy()
        return chosen.astype(np.int32)

    @torch.inference_mode()
    def steer(obs: Array) -> Array:
        mean = policy(inputs(obs))
        steered: Array = torch.tanh(mean + torch.randn_like(mean)).double().numpy()
        return steered

    return choose if discrete else steer


def make_turn(envs: Any, act: Act, batch: int) -> Callable[[], int]:  # noqa: ANN401  # see above
    """Return a function that steps `TURN_STEPS` batches and returns the number of steps."""
    if batch == len(envs):
        obs, _ = envs.reset()

        def together() -> int:
            nonlocal obs
            for _ in range(TURN_STEPS):
                obs = envs.step(act(obs))[0]
            return TURN_STEPS * batch

        return together

    def meanwhile() -> int:
        for _ in range(TURN_STEPS):
            received = envs.recv()
            envs.send(act(received[0]), received[4]["env_id"])
        return TURN_STEPS * batch

    envs.async_reset()
    return meanwhile


def measure(asked: Request) -> Work:
    """Step environments, with the policy in the loop or with precomputed random actions."""
    settings = asked.settings
    envs = envpool.make(
        TASKS[asked.env],
        env_type="gymnasium",
        num_envs=settings["envs"],
        batch_size=settings["batch"],
        num_threads=settings["env_threads"],
        seed=asked.seed,
    )
    act = make_act(asked.env, envs)
    if asked.stage == "env":
        drawn = drawn_actions(asked, envs.action_space, settings["batch"])
        act = partial(next_of, itertools.cycle(drawn))
    return Work(turn=make_turn(envs, act, settings["batch"]), close=envs.close)


def drawn_actions(asked: Request, space: Any, batch: int) -> list[Array]:  # noqa: ANN401  # see above
    """Return random actions, of the dtype that EnvPool need not convert."""
    space.seed(asked.seed)
    dtype = np.int32 if hasattr(space, "n") else np.float64
    return [np.array([space.sample() for _ in range(batch)], dtype) for _ in range(TURN_STEPS)]


def next_of(actions: Iterator[Array], _obs: Array) -> Array:
    """Act without using the observation."""
    return next(actions)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "WARN: Box|.*precision lowered", UserWarning)
    stages = {"sampling": Stage(measure, SAMPLING), "env": Stage(measure, ENV)}
    measure_once("envpool", envpool.__version__, __doc__, stages)
