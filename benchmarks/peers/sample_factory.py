"""Sample Factory: its sampler alone, without a learner.

It needs Gymnasium 0.29, so the cheetah is HalfCheetah-v4: the same model, and the same steps.
"""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from typing import Any

import gymnasium
from sample_factory.algo.sampling.simplified_sampling_api import (  # type: ignore[import-not-found]
    SyncSamplingAPI,
)
from sample_factory.algo.utils.env_info import (  # type: ignore[import-not-found]
    obtain_env_info_in_a_separate_process,
)
from sample_factory.algo.utils.rl_utils import (  # type: ignore[import-not-found]
    samples_per_trajectory,
)
from sample_factory.cfg.arguments import (  # type: ignore[import-not-found]
    parse_full_cfg,
    parse_sf_args,
)
from sample_factory.envs.env_utils import register_env  # type: ignore[import-not-found]

from benchmarks.peers.interface import ATARI, CARTPOLE, CHEETAH, Request, Stage, Work, measure_once

NAMES = {CARTPOLE: CARTPOLE, CHEETAH: "mujoco_halfcheetah", ATARI: "atari_pong"}
"""Our name -> Sample Factory's, which selects its defaults and wrappers."""

SAMPLING: dict[str, dict[str, Any]] = {
    CARTPOLE: {
        "num_workers": 2,
        "num_envs_per_worker": 64,
        "worker_num_splits": 1,
        "batched_sampling": True,
    },
    CHEETAH: {
        "num_workers": 2,
        "num_envs_per_worker": 32,
        "worker_num_splits": 2,
        "batched_sampling": True,
    },
    ATARI: {
        "num_workers": 2,
        "num_envs_per_worker": 8,
        "worker_num_splits": 2,
        "batched_sampling": True,
    },
}
"""Fastest of those tried, in env steps/s on two cores that did other things as well:

CartPole, environments of each of two workers, in batches: 64 unsplit 56,000, 64 split in two
45,000, 128 37,000, 256 29,000; not in batches 36,000. One worker 20,000, three 20,000. With a
learner 44,000. HalfCheetah: 32 21,000, 16 15,000; 32 not in batches 8,300. Pong: 8 2,500; not in
batches 2,000, 16 of them 1,100.
"""

ARGUMENTS = [
    "--algo=APPO",
    "--device=cpu",
    "--use_rnn=False",
    "--recurrence=1",
    "--rollout=32",
    "--batch_size=4096",
    "--normalize_input=False",
    "--decorrelate_envs_on_one_worker=False",
    "--nonlinearity=relu",
    "--experiment=sampling",
]

WARM_UP_S = 2.0


def make_env(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:  # noqa: ANN401  # untyped here
    """Return an environment; Pong with Sample Factory's own wrappers."""
    if name == NAMES[CARTPOLE]:
        return gymnasium.make(name, render_mode=render_mode)
    if name == NAMES[CHEETAH]:
        return gymnasium.make("HalfCheetah-v4", render_mode=render_mode)
    from ale_py.registration import register_v0_v4_envs  # noqa: PLC0415  # slow to load
    from sf_examples.atari.atari_utils import (  # type: ignore[import-not-found]  # noqa: PLC0415
        make_atari_env,
    )

    register_v0_v4_envs()  # type: ignore[no-untyped-call,unused-ignore]  # 0.29 does not find it
    return make_atari_env(name, cfg, env_config, render_mode)


def configured(asked: Request) -> Any:  # noqa: ANN401  # untyped here
    """Return Sample Factory's settings of a 64x64 policy."""
    for name in NAMES.values():
        register_env(name, make_env)
    given = [f"--{key}={value}" for key, value in asked.settings.items()]
    argv = [
        f"--env={NAMES[asked.env]}",
        f"--train_dir={tempfile.mkdtemp()}",
        f"--seed={asked.seed}",
    ]
    argv += ["--encoder_mlp_layers", "64", "64", "--encoder_conv_mlp_layers", "64", "64"]
    parser, _ = parse_sf_args(argv=[*argv, *ARGUMENTS, *given])
    if asked.env == ATARI:
        from sf_examples.atari.atari_params import (  # type: ignore[import-not-found]  # noqa: PLC0415
            atari_override_defaults,
        )

        atari_override_defaults(asked.env, parser)
    return parse_full_cfg(parser, [*argv, *ARGUMENTS, *given])


def sampling(asked: Request) -> Work:
    """Run the sampler without a learner, and count its steps."""
    cfg = configured(asked)
    sampler = SyncSamplingAPI(cfg, obtain_env_info_in_a_separate_process(cfg))
    sampler.start()
    return Work(
        turn=lambda: int(samples_per_trajectory(sampler.get_trajectories_sync())),
        close=sampler.stop,
        warm_up_s=WARM_UP_S,
        note="HalfCheetah-v4." if asked.env == CHEETAH else "",
    )


if __name__ == "__main__":
    stages = {"sampling": Stage(sampling, SAMPLING)}
    measure_once("sample_factory", version("sample-factory"), __doc__, stages)
