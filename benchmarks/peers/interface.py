"""What every script of this folder takes, prints and measures with.

    python -m benchmarks.peers.PEER STAGE [--env ID] [--seconds S] [--seed N] [--threads N]

prints one JSON object as its last line. Imports nothing of asyncrl, and nothing that one of the
peers' virtual environments may lack.
"""

from __future__ import annotations

import argparse
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

PER_ROWS = 1_000_000
PER_BATCH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What an update is measured with: the shapes of an environment, no environment."""

    obs: int
    actions: int
    """How many to choose from, or how many numbers an action has."""

    hidden: tuple[int, ...]
    batch: int


SIZES: Mapping[str, Sizes] = {
    "updates-sac": Sizes(obs=17, actions=6, hidden=(256, 256), batch=256),
    "updates-dqn": Sizes(obs=4, actions=2, hidden=(64, 64), batch=128),
}


def make_rows(sizes: Sizes, n: int, *, discrete: bool) -> dict[str, npt.NDArray[Any]]:
    """Return transitions without meaning, the same ones at each call."""
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
    """One measurement, as it was asked for."""

    stage: str
    env: str
    seconds: float
    """Of measuring; or, for a time to a score, when to give up."""

    seed: int
    threads: int
    """Of torch; 0 leaves them to the script, which knows how many are fastest."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Instead of those that the script has found to be fastest; for a sweep."""


def request(description: str | None, stages: Mapping[str, object]) -> Request:
    """Read the command line.

    Args:
        description: The first line of it is shown.
        stages: What the script can measure.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("stage", choices=sorted(stages))
    parser.add_argument("--env", default="", help="the stage's own by default")
    parser.add_argument("--seconds", type=float, default=0.0, help="3 by default; 90 to a score")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as are fastest")
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON, for a sweep")
    args = parser.parse_args()
    env = args.env or STAGES[args.stage][0]
    if env not in STAGES[args.stage]:
        parser.error(f"{args.stage} is measured on {', '.join(STAGES[args.stage])}, not on {env}")
    seconds = args.seconds or (90.0 if args.stage.startswith("score") else 3.0)
    return Request(
        stage=args.stage,
        env=env,
        seconds=seconds,
        seed=args.seed,
        threads=args.threads,
        settings=args.settings,
    )


def measure_once(
    description: str | None, stages: Mapping[str, Callable[[Request], object]]
) -> None:
    """Measure what the command line asks for; the stage prints its JSON line."""
    asked = request(description, stages)
    stages[asked.stage](asked)


def report(
    asked: Request,
    *,
    peer: str,
    version: str,
    value: float | None,
    settings: Mapping[str, object],
    note: str = "",
    details: Mapping[str, object] | None = None,
) -> None:
    """Print the result.

    Args:
        asked: What was measured.
        peer: Whose speed it is.
        version: Of the peer.
        value: In the unit of the stage; None if there is none.
        settings: What it was measured with.
        note: What a reader must know to understand the value, or why there is none.
        details: More numbers.
    """
    result = {
        "peer": peer,
        "version": version,
        "stage": asked.stage,
        "env": asked.env,
        "value": value,
        "unit": UNITS[asked.stage],
        "settings": dict(settings),
        "note": note,
        "details": dict(details or {}),
    }
    print(json.dumps(result), flush=True)


def rate(turn: Callable[[], int], seconds: float, warm_up_s: float = 1.0) -> float:
    """Return how many a second `turn` makes, by the numbers it returns; first warms up."""
    turn()
    ready = time.perf_counter() + warm_up_s
    while time.perf_counter() < ready:
        turn()
    began, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds or not count:
        count += turn()
    return count / elapsed


def make_env(env_id: str) -> Any:  # noqa: ANN401  # untyped where this is checked
    """Return one plain environment; Atari's in grey, 84x84, four frames a step, four stacked."""
    import gymnasium  # noqa: PLC0415  # not all peers have it

    if not env_id.startswith("ALE/"):
        return gymnasium.make(env_id)
    import ale_py  # noqa: PLC0415  # nor this

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(env_id, frameskip=1)
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
