"""What the command line can say of the load: settings and their refusals."""

from __future__ import annotations

from tests.bench.workloads import tiny


def test_arguments_reach_the_environment() -> None:
    workload = tiny(env_kwargs={"max_episode_steps": 7})
    assert workload.env_config.make_plain().spec.max_episode_steps == 7
