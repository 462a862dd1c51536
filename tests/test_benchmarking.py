"""The measurement of sampling throughput: real numbers, both from processes of its own."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest

from asyncrl import benchmarking
from asyncrl.agents.dqn import DQNConfig
from asyncrl.async_config import AsyncConfig, EvaluationConfig
from asyncrl.benchmarking import SampleBenchmark, machine
from asyncrl.envs.gym import make_batch
from asyncrl.errors import ActorFailed, AsyncRLError
from asyncrl.rate_limiter import RateLimiterConfig


def cartpole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


class Falls(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        raise RuntimeError("the robot fell off the table")


def falling() -> gymnasium.Env[Any, Any]:
    return Falls(cartpole())


def benchmark(
    make_plain: Callable[[], Any] = cartpole, make: Callable[[], Any] = cartpole, **changes: Any
) -> SampleBenchmark:
    small = SampleBenchmark(
        env="CartPole-v1",
        make_plain=make_plain,
        make_batch=make_batch(make, n_envs=4),
        agent=DQNConfig(hidden=(8,)),
        config=AsyncConfig(
            actors=1,
            limiter=RateLimiterConfig(samples_per_insert=0.0),
            evaluation=EvaluationConfig(where="off"),
        ),
        envs_per_actor=4,
        seconds=0.2,
        repeats=1,
    )
    return dataclasses.replace(small, **changes)


@pytest.mark.processes
def test_throughput_and_its_limit_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarking, "_WARM_UP_S", 0.1)
    result = benchmark(repeats=2).run()
    assert (result.env, result.actors, result.envs_per_actor) == ("CartPole-v1", 1, 4)
    assert len(result.repeats) == 2
    rates = [r["env_steps_per_s"] for r in result.repeats]
    limits = [r["limit_env_steps_per_s"] for r in result.repeats]
    # Any machine steps CartPole more often than this, and none that often in Python.
    assert all(100 < rate < 10_000_000 for rate in [*rates, *limits])
    assert result.env_steps_per_s == statistics.median(rates)
    assert result.limit_env_steps_per_s == statistics.median(limits)
    ratios = [rate / limit for rate, limit in zip(rates, limits, strict=True)]
    assert result.ratio == pytest.approx(statistics.median(ratios))


@pytest.mark.processes
def test_environment_that_fails_in_the_bare_loop_is_told_with_its_error() -> None:
    with pytest.raises(AsyncRLError, match="bare loop failed: RuntimeError: the robot fell") as e:
        benchmark(make_plain=falling).run()
    assert "in step" in str(e.value)


@pytest.mark.processes
def test_environment_that_fails_in_an_actor_fails_the_measurement() -> None:
    with pytest.raises(ActorFailed, match="actor 0 failed: RuntimeError: the robot fell off"):
        benchmark(make=falling)._measure_actors()


def test_processes_that_never_start_end_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarking, "_START_DEADLINE_S", 0.0)
    with pytest.raises(AsyncRLError, match="no 2 processes got going in 0 s"):
        benchmarking._rate(lambda: (0, 1), 2, 1.0)


def test_rate_counts_from_the_end_of_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now_s)
    monkeypatch.setattr(benchmarking, "time", clock)
    # Both processes have started after 10 s, and take half a second more to run at 50 a second.
    rate = benchmarking._rate(lambda: (max(0, int(50 * (now_s - 10.5))), 2 * (now_s > 10)), 2, 4.0)
    assert rate == pytest.approx(50.0, rel=0.01)


def test_machine_is_described_by_what_numbers_depend_on() -> None:
    described = machine()
    assert described["cores"] >= 1
    assert isinstance(described["processor"], str), "empty where the system does not tell"
    assert all(described[name] for name in ("platform", "python", "torch", "numpy", "gymnasium"))
