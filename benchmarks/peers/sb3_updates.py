"""Stable-Baselines3: optimisation steps a second from a filled replay buffer, 256x256 networks.

SAC with batches of 256 on Pendulum-v1, or DQN with batches of 64 on CartPole-v1: what the two
time-to-score scripts do between their environment steps.
"""

from __future__ import annotations

import time
from typing import Any

from stable_baselines3 import DQN, SAC  # type: ignore[import-not-found]

from benchmarks.peers.sb3_common import begin, parser, report

__all__ = ["make_model"]

CHUNK_OPT_STEPS = 50

FASTEST_THREADS = {"sac": 0, "dqn": 1}
"""On two cores; 0 leaves it to torch. Small batches are slower with more than one."""


def make_model(algorithm: str, seed: int, fill: int) -> Any:  # noqa: ANN401  # untyped here
    """Return a model whose buffer has been filled by random actions."""
    kwargs: dict[str, Any] = {
        "policy_kwargs": {"net_arch": [256, 256]},
        "buffer_size": fill,
        "learning_starts": fill,
        "seed": seed,
        "device": "cpu",
    }
    if algorithm == "sac":
        model = SAC("MlpPolicy", "Pendulum-v1", batch_size=256, **kwargs)
    else:
        model = DQN("MlpPolicy", "CartPole-v1", batch_size=64, **kwargs)
    model.learn(total_timesteps=fill)
    return model


def main() -> None:
    """Measure and print one JSON line."""
    arguments = parser(__doc__, threads=-1)
    arguments.add_argument("--algorithm", choices=["sac", "dqn"], default="sac")
    arguments.add_argument("--seconds", type=float, default=5.0)
    arguments.add_argument("--fill", type=int, default=20_000, help="transitions in the buffer")
    args = arguments.parse_args()
    begin(FASTEST_THREADS[args.algorithm] if args.threads < 0 else args.threads)
    model = make_model(args.algorithm, args.seed, args.fill)
    model.train(gradient_steps=CHUNK_OPT_STEPS, batch_size=model.batch_size)
    began, opt_steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < args.seconds or not opt_steps:
        model.train(gradient_steps=CHUNK_OPT_STEPS, batch_size=model.batch_size)
        opt_steps += CHUNK_OPT_STEPS
    report(
        algorithm=args.algorithm.upper(),
        batch_size=model.batch_size,
        replay_size=model.replay_buffer.size(),
        opt_steps_per_s=opt_steps / elapsed,
    )


if __name__ == "__main__":
    main()
