"""The interface of the scripts in this folder, and the code that times them.

    python -m benchmarks.peers.PEER STAGE [--env ID] [--seconds S] [--seed N] [--threads N]

prints one JSON object as its last line. A script implements one turn, or a training run; threads,
seeds, warm-up, clocks and reports are here. Imports neither asyncrl nor any package that a peer's
virtual environment may lack.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

CARTPOLE = "CartPole-v1"
CHEETAH = "HalfCheetah-v5"
ATARI = "ALE/Pong-v5"
PENDULUM = "Pendulum-v1"

STAGES: Mapping[str, tuple[str, ...]] = {
    "sampling": (CARTPOLE, CHEETAH, ATARI),
    "env": (CARTPOLE, CHEETAH, ATARI),
    "updates-sac": (CHEETAH,),
    "updates-dqn": (CARTPOLE,),
    "per": (CARTPOLE,),
    "score-dqn": (CARTPOLE,),
    "score-sac": (PENDULUM,),
}
"""Stage -> the environments it is measured on, the first of which is its default."""

UNITS: Mapping[str, str] = {
    "sampling": "env steps/s",
    "env": "env steps/s",
    "updates-sac": "opt steps/s",
    "updates-dqn": "opt steps/s",
    "per": "batches/s",
    "score-dqn": "s",
    "score-sac": "s",
}

REPLAY_ROWS = 100_000
"""In the replay that updates are measured from."""

UPDATES = {"threads": 1, "rows": REPLAY_ROWS}
"""Settings of the stages `updates-...`."""

PER_ROWS = 1_000_000
PER_BATCH = 256
PER = {"alpha": 0.6, "beta": 0.4, "threads": 1}
"""Settings of the stage `per`."""

Act = Callable[[npt.NDArray[np.float32]], npt.NDArray[Any]]
"""A batch of observations -> the greedy actions, as the environment takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Shapes of an environment, with which updates are measured without one."""

    obs: int
    actions: int
    """Number of discrete actions, or size of a continuous one."""

    hidden: tuple[int, ...]
    batch: int


SIZES: Mapping[str, Sizes] = {
    "updates-sac": Sizes(obs=17, actions=6, hidden=(256, 256), batch=256),
    "updates-dqn": Sizes(obs=4, actions=2, hidden=(64, 64), batch=128),
}


def make_rows(sizes: Sizes, n: int, *, discrete: bool) -> dict[str, npt.NDArray[Any]]:
    """Return random transitions, the same in each call."""
    rng = np.random.default_rng(0)
    action: npt.NDArray[Any] = rng.integers(sizes.actions, size=n)
    if not discrete:
        action = rng.uniform(-1.0, 1.0, (n, sizes.actions)).astype(np.float32)
    return {
        "obs": rng.standard_normal((n, sizes.obs), np.float32),
        "action": action,
        "reward": rng.standard_normal(n, np.float32),
        "next_obs": rng.standard_normal((n, sizes.obs), np.float32),
        "terminated": rng.random(n) < 0.01,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One measurement, as requested."""

    stage: str
    env: str
    seconds: float
    """How long to measure."""

    seed: int
    env_steps: int = 0
    """Length of a training."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the stage, overridden by the command line."""

    @property
    def discrete(self) -> bool:
        """Whether this is a stage of DQN."""
        return self.stage.endswith("dqn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A repeatable unit of work that returns its amount."""

    turn: Callable[[], int]
    close: Callable[[], object] = lambda: None
    warm_up_s: float = 1.0
    note: str = ""
    """Notes that a reader needs to understand the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training run."""

    run: Callable[[int], int]
    """Trains for a number of environment steps, and returns the number of updates."""

    act: Act
    """The current greedy policy."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage that a script can measure."""

    make: Callable[[Request], Work | Training | Mapping[str, Any]]
    """Prepares the measurement; or measures, and returns value, note and details."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """The fastest known settings; or environment -> settings."""


def measure_once(
    peer: str, version: str, description: str | None, stages: Mapping[str, Stage]
) -> None:
    """Measure what the command line asks for, and print it as one line of JSON."""
    asked = _request(description, stages)
    if "threads" in asked.settings:
        import torch  # noqa: PLC0415  # not all peers have it

        torch.set_num_threads(asked.settings["threads"])
        torch.manual_seed(asked.seed)
    np.random.seed(asked.seed)  # noqa: NPY002  # where some peers draw from
    made = stages[asked.stage].make(asked)
    result: dict[str, Any] = {"peer": peer, "version": version, "stage": asked.stage}
    result |= {"env": asked.env, "settings": dict(asked.settings), "note": "", "details": {}}
    if isinstance(made, Training):
        from benchmarks.peers.equal import train_for  # noqa: PLC0415  # as above

        result |= train_for(asked, made)
    elif isinstance(made, Work):
        result |= {"value": rate(made.turn, asked.seconds, made.warm_up_s), "note": made.note}
        made.close()
    else:
        result |= made
    print(json.dumps({**result, "unit": UNITS.get(asked.stage, "")}), flush=True)


def _request(description: str | None, stages: Mapping[str, Stage]) -> Request:
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("stage", choices=sorted(stages))
    parser.add_argument("--env", default="", help="the stage's own by default")
    parser.add_argument("--seconds", type=float, default=0.0, help="3 by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as are fastest")
    parser.add_argument(
        "--env-steps",
        type=int,
        default=0,
        help="train for this number of environment steps, and evaluate",
    )
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON, for a sweep")
    args = parser.parse_args()
    known = STAGES.get(args.stage, ())
    env = args.env or known[0]
    if env not in known and not args.env_steps:
        parser.error(f"{args.stage} is measured on {', '.join(known)}, not on {env}")
    settings = stages[args.stage].settings
    threads = {"threads": args.threads} if args.threads else {}
    return Request(
        stage=args.stage,
        env=env,
        seconds=args.seconds or 3.0,
        seed=args.seed,
        env_steps=args.env_steps,
        settings={**settings.get(env, settings), **threads, **args.settings},
    )


def rate(turn: Callable[[], int], seconds: float, warm_up_s: float = 1.0) -> float:
    """Warm up, then return the rate per second of the numbers that `turn` returns."""
    turn()
    ready = time.perf_counter() + warm_up_s
    while time.perf_counter() < ready:
        turn()
    began, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds or not count:
        count += turn()
    return count / elapsed


def once(work: Callable[[], object]) -> Callable[[], int]:
    """Return a turn that calls a function once."""

    def turn() -> int:
        work()
        return 1

    return turn


def stepping(step: Callable[[Any], object], draw: Callable[[], Any], n_envs: int) -> Work:
    """Return a turn that steps environments with precomputed random actions."""
    actions = [draw() for _ in range(100)]

    def turn() -> int:
        for action in actions:
            step(action)
        return len(actions) * n_envs

    return Work(turn=turn)


def prioritizing(
    sample: Callable[[], Any], update: Callable[[Any, npt.NDArray[np.float32]], object]
) -> Work:
    """Return a turn that samples by priority and updates the sampled priorities."""
    errors = itertools.cycle(np.random.default_rng(0).random((100, PER_BATCH)).astype(np.float32))
    return Work(turn=once(lambda: update(sample(), next(errors))))


def convolutions() -> list[Any]:
    """Return the layers of Mnih et al. (2015), for four frames of 84x84."""
    from torch import nn  # noqa: PLC0415  # not all peers have it

    layers = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
    return [*layers, nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(-3)]


PIXEL_FEATURES = 64 * 7 * 7
"""Size of the output of `convolutions`."""


def make_env(env_id: str) -> Any:  # noqa: ANN401  # untyped where this is checked
    """Return one plain environment; Atari: grayscale, 84x84, frame skip 4, 4 stacked frames."""
    import gymnasium  # noqa: PLC0415  # not all peers have it

    if not env_id.startswith("ALE/"):
        return gymnasium.make(env_id, disable_env_checker=True)
    import ale_py  # noqa: PLC0415  # nor this

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(env_id, frameskip=1, disable_env_checker=True)
    env = gymnasium.wrappers.AtariPreprocessing(env, frame_skip=4, screen_size=84, noop_max=30)
    return gymnasium.wrappers.FrameStackObservation(env, 4)


def make_vector(env_id: str, kind: str, n: int) -> Any:  # noqa: ANN401  # the same
    """Return Gymnasium's vector environment: `sync`, `async`, or `ale`, which is ale_py's own."""
    import gymnasium  # noqa: PLC0415  # the same

    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    if kind == "ale":
        from ale_py.vector_env import AtariVectorEnv  # noqa: PLC0415  # the same

        game = env_id.removeprefix("ALE/").removesuffix("-v5").lower()
        return AtariVectorEnv(game, n, autoreset_mode=mode)
    made = {"sync": gymnasium.vector.SyncVectorEnv, "async": gymnasium.vector.AsyncVectorEnv}[kind]
    return made([partial(make_env, env_id)] * n, autoreset_mode=mode)
