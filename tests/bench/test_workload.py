"""What the command line can say of the load: settings and their refusals."""

from __future__ import annotations

from tests.bench.workloads import tiny
from tests.test_architecture import loaded_by


def test_arguments_reach_the_environment() -> None:
    workload = tiny(env_kwargs={"max_episode_steps": 7})
    assert workload.env_config.make_plain().spec.max_episode_steps == 7


def test_senders_and_receivers_load_no_torch() -> None:
    assert "torch" not in loaded_by("asyncrl.bench.stage_transport")
