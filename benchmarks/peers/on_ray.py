"""How many transitions per second do asyncrl and RLlib learn from on the same Ray cluster?

Both train IMPALA on CartPole with two runners of the same number of environments and a 64x64
network, in turns, each with its own default batches. Needs an environment with both:

    benchmarks/peers/make_venv.sh rllib
    .peers/rllib/bin/pip install -e .
    .peers/rllib/bin/python -m benchmarks.peers.on_ray
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.common import compare, in_turns, keep, make_parser, provenance

RUNNERS = 2
_TIMEOUT_S = 170.0
_STARTS_S = 5.0
"""Seconds of a run that precede its measurement."""


def asyncrl_rate(address: str, envs: int, seconds: float) -> float:
    """Return the transitions that asyncrl learns from per second."""
    from dataclasses import replace  # noqa: PLC0415

    from asyncrl.core.callback import Callback, Training  # noqa: PLC0415
    from asyncrl.learner.stop_conditions import MaxSeconds  # noqa: PLC0415
    from asyncrl.supervision.ray import RayConfig  # noqa: PLC0415
    from asyncrl.training.asynchronous import build_async_trainer  # noqa: PLC0415
    from asyncrl.training.common_config import EvaluationConfig  # noqa: PLC0415
    from asyncrl.training.presets import preset  # noqa: PLC0415

    config = replace(
        preset("impala"),
        actors=RUNNERS,
        envs_per_actor=envs,
        launcher="ray",
        ray=RayConfig(address=address, hosts=RUNNERS),
        evaluate=EvaluationConfig(where="off"),
    )
    seen: list[tuple[float, int]] = []

    class Notes(Callback):
        def step(self, trainer: Training) -> None:
            seen.append((time.monotonic(), trainer.opt_steps))

    build_async_trainer(
        config.agent,
        config.env_config().build,
        config,
        stop=MaxSeconds(seconds + _STARTS_S),
        callbacks=[Notes()],
    ).train()
    after = [one for one in seen if one[0] > seen[-1][0] - seconds]
    (began, first), (ended, last) = after[0], after[-1]
    return (last - first) * config.trainer.batch_size / (ended - began)


def rllib_rate(address: str, envs: int, seconds: float) -> float:
    """Return the transitions that RLlib learns from per second."""
    import ray  # type: ignore[import-not-found]  # noqa: PLC0415
    from ray.rllib.algorithms.impala import (  # type: ignore[import-not-found]  # noqa: PLC0415
        IMPALAConfig,
    )
    from ray.rllib.core.rl_module.default_model_config import (  # type: ignore[import-not-found]  # noqa: PLC0415
        DefaultModelConfig,
    )

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    algorithm = (
        IMPALAConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=RUNNERS, num_envs_per_env_runner=envs)
        .learners(num_learners=0)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="relu"))
        .reporting(min_time_s_per_iteration=0.5)
        .debugging(log_level="ERROR")
        .build_algo()
    )

    def turn() -> float:
        learner = algorithm.train().get("learners", {}).get("__all_modules__", {})
        return float(learner.get("num_env_steps_trained_lifetime", 0))

    rate = _rate(turn, seconds)
    algorithm.stop()
    return rate


def _rate(turn: Callable[[], float], seconds: float) -> float:
    """Return the growth per second of what `turn` returns, after the first that is above 0."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not (first := turn()):
        assert time.monotonic() < deadline, "nothing was learned from"
    began = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        last = turn()
    return (last - first) / (time.monotonic() - began if last > first else now - began)


SIDES = {"asyncrl": asyncrl_rate, "RLlib": rllib_rate}


def measure(side: str, address: str, args: argparse.Namespace) -> float:
    """Measure one side in a separate process."""
    words = [side, address, str(args.envs), str(args.seconds)]
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "benchmarks.peers.on_ray", "--side", *words],
        stdout=subprocess.PIPE,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure both sides in turns."""
    from benchmarks.speed.hosts import cluster  # noqa: PLC0415

    parser = make_parser(__doc__)
    parser.add_argument("--envs", type=int, default=64, help="environments of each runner")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    args = parser.parse_args(argv)
    origin = provenance()
    with cluster() as address:
        rounds = in_turns(
            {side: partial(measure, side, address, args) for side in SIDES}, args.repeats
        )
    what = f"IMPALA on Ray, {RUNNERS} runners of {args.envs} CartPoles: transitions learned"
    rows = [compare(rounds, "asyncrl", "RLlib", what=what, unit="transitions/s")]
    keep(args, "on_ray_impala", __doc__, rows, origin=origin, details=rounds)


if __name__ == "__main__":
    os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    if sys.argv[1:2] == ["--side"]:
        side, address, envs, seconds = sys.argv[2:]
        print(json.dumps(SIDES[side](address, int(envs), float(seconds))), flush=True)
    else:
        main()
