from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.core.launcher import ActorExit, ProgressReport
from asyncrl.fleet import restart_policy
from asyncrl.fleet.config import ActorManagerConfig, OnException, RestartPolicyConfig
from asyncrl.fleet.restart_policy import (
    Drop,
    EnvRestartPolicy,
    GiveUp,
    Restart,
    RestartPolicy,
    cause_of,
    hung,
)
from asyncrl.run.run_config import RunConfig
from tests.support.sample_messages import make_peer

KILLED = ActorExit(
    peer=make_peer(), code=-signal.SIGKILL, last=ProgressReport(100, 100, waiting=False)
)
RAISED = replace(KILLED, code=1, error="ValueError: no", text="Traceback ...")
STEADY = RestartPolicyConfig()


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart_policy, "_JITTER", 0.0)


def waits(config: RestartPolicyConfig, exits: int, every_s: float = 0.0) -> list[float]:
    policy = RestartPolicy(config, seed=0)
    decisions = [policy.on_exit(KILLED, now=i * every_s) for i in range(exits)]
    assert all(isinstance(decision, Restart) for decision in decisions)
    return [decision.after_s for decision in decisions if isinstance(decision, Restart)]


@pytest.mark.fault("F7")
def test_backoff_grows_to_its_limit() -> None:
    config = replace(STEADY, backoff_s=1.0, backoff_max_s=3.0)
    assert waits(config, 4) == [1.0, 2.0, 3.0, 3.0]


@pytest.mark.fault("F7")
def test_actors_that_die_together_do_not_come_back_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart_policy, "_JITTER", 0.5)
    policy = RestartPolicy(RestartPolicyConfig(backoff_s=1.0, max_restarts=99), seed=0)
    waited = set()
    for i in range(20):
        peer = make_peer(i)
        decision = policy.on_exit(replace(KILLED, peer=peer), now=0.0)
        assert isinstance(decision, Restart)
        assert 0.5 <= decision.after_s <= 1.0
        waited.add(decision.after_s)
    assert len(waited) == 20
    assert max(waited) - min(waited) > 0.25


def test_deaths_long_past_do_not_count() -> None:
    config = replace(STEADY, max_restarts=1, window_s=10.0)
    assert waits(config, 20, every_s=10.0) == [config.backoff_s] * 20


@pytest.mark.fault("F7")
def test_backoff_and_budget_are_each_slots_own() -> None:
    policy = RestartPolicy(replace(STEADY, max_restarts=1), seed=0)
    for i in range(20):
        peer = make_peer(i)
        assert policy.on_exit(replace(KILLED, peer=peer), now=0.0) == Restart(STEADY.backoff_s)
    assert isinstance(policy.on_exit(KILLED, now=1.0), GiveUp), "slot 0 again"


@pytest.mark.fault("F6", "F7")
def test_actors_that_never_do_their_work_spend_the_budget_however_long_each_takes() -> None:
    cause = hung(300.0, 300.0, starts=False)
    policy = RestartPolicy(replace(STEADY, max_restarts=5, window_s=600.0), seed=0)
    for death in range(5):
        decision = policy.on_exit(KILLED, now=301.0 * death, cause=cause)
        assert isinstance(decision, Restart)
    given_up = policy.on_exit(KILLED, now=301.0 * 5, cause=cause)
    assert isinstance(given_up, GiveUp)
    assert given_up.advice == cause.advice


@pytest.mark.fault("F5")
def test_no_restart_before_anything_ever_worked() -> None:
    stillborn = replace(KILLED, last=ProgressReport(0, 0, waiting=False))
    policy = RestartPolicy(STEADY, seed=0)
    assert isinstance(policy.on_exit(stillborn, now=0.0), GiveUp)
    assert isinstance(policy.on_exit(stillborn, now=0.0, others_work=True), Restart)
    policy.on_exit(KILLED, now=0.0)
    assert isinstance(policy.on_exit(stillborn, now=1.0), Restart), "others have worked"


@pytest.mark.fault("F1", "F5")
def test_a_start_that_the_system_refuses_is_tried_again_once_others_have_worked() -> None:
    refused = replace(
        KILLED,
        code=1,
        began=False,
        error="BlockingIOError: [Errno 11] Resource temporarily unavailable",
        last=ProgressReport(0, 0, waiting=False),
    )
    policy = RestartPolicy(replace(STEADY, on_exception="drop_actor", min_actors=9), seed=0)
    decision = policy.on_exit(refused, now=0.0, others_left=1)
    assert isinstance(decision, GiveUp), "at first that says that the machine is too small"
    assert decision.advice.startswith("Run fewer actors, or raise the system's limit")
    policy.on_exit(KILLED, now=0.0)
    assert policy.on_exit(refused, now=0.0, others_left=1) == Restart(0.2)
    assert cause_of(refused).how.startswith("could not start: BlockingIOError: [Errno 11]")


@pytest.mark.fault("F28")
def test_a_broken_connection_is_no_failure_of_an_actor_that_worked() -> None:
    lost = replace(RAISED, error="ConnectionLost: the connection to the learner at x broke")
    policy = RestartPolicy(replace(STEADY, on_exception="raise", max_restarts=1), seed=0)
    breaks = [policy.on_exit(lost, now=0.0) for _ in range(10)]
    assert breaks[:3] == [Restart(0.0), Restart(0.2), Restart(0.4)], "if it flaps, later each time"
    assert breaks[-1] == Restart(STEADY.backoff_max_s)
    assert policy.on_exit(lost, now=1e4) == Restart(0.0)
    unborn = replace(lost, last=ProgressReport(0, 0, waiting=False))
    assert policy.on_exit(unborn, now=0.0) == Restart(STEADY.backoff_s)
    assert isinstance(policy.on_exit(unborn, now=0.0), GiveUp), "else it would go on forever"
    # As of a library that an environment uses.
    assert isinstance(policy.on_exit(replace(RAISED, error="ConnectionLost: x"), now=0.0), GiveUp)


# --- exceptions ----------------------------------------------------------------------------------

NO_ACTOR = None
RAISED_AT_START = replace(RAISED, last=ProgressReport(0, 0, waiting=False))


@pytest.mark.fault("F4")
@pytest.mark.parametrize(
    ("on_exception", "others_left", "ended", "expected"),
    [
        ("raise", 2, RAISED, GiveUp),
        ("raise", 2, KILLED, Restart),
        ("restart", 2, RAISED, Restart),
        ("drop_actor", 2, RAISED, Drop),
        ("drop_actor", 2, RAISED_AT_START, Drop),  # as where the number of simulators is limited
        ("drop_actor", 1, RAISED, GiveUp),  # too few would be left
        ("drop_actor", NO_ACTOR, RAISED, Restart),
        ("drop_actor", 2, KILLED, Restart),
        ("restart_env", 2, RAISED, GiveUp),  # new environments have not helped
        ("restart_env", 2, RAISED_AT_START, Restart),  # nothing was made yet
        ("restart_env", NO_ACTOR, RAISED, Restart),
    ],
)
def test_exceptions_are_answered_as_configured(
    on_exception: OnException, others_left: int | None, ended: ActorExit, expected: type
) -> None:
    policy = RestartPolicy(replace(STEADY, on_exception=on_exception, min_actors=2), seed=0)
    decision = policy.on_exit(ended, now=0.0, others_work=True, others_left=others_left)
    assert isinstance(decision, expected)


def test_fewest_actors_are_no_more_than_there_are() -> None:
    restart = RestartPolicyConfig(on_exception="drop_actor", min_actors=3)
    supervision = ActorManagerConfig(restart=restart)
    assert RunConfig(actors=3, supervision=supervision).actors == 3
    with pytest.raises(ConfigError, match=r"min_actors is 3, but there are only 2 actors"):
        RunConfig(actors=2, supervision=supervision)


@pytest.mark.fault("F4", "F5", "F7")
def test_environments_are_rebuilt_within_a_budget_and_ever_later() -> None:
    config = replace(STEADY, backoff_s=1.0, max_restarts=2, window_s=60.0)
    policy = EnvRestartPolicy(config, seed=0)
    assert policy.on_failure(now=0.0, env_steps=1) == Restart(1.0)
    assert policy.on_failure(now=1.0, env_steps=1) == Restart(2.0)
    end = policy.on_failure(now=2.0, env_steps=1)
    assert isinstance(end, GiveUp)
    assert "failure 3 " in end.why
    assert "supervision.restart.max_restarts is 2" in end.why
    assert policy.on_failure(now=200.0, env_steps=1) == Restart(1.0)
    never_worked = EnvRestartPolicy(STEADY, seed=0).on_failure(now=0.0, env_steps=0)
    assert isinstance(never_worked, GiveUp)


# --- causes --------------------------------------------------------------------------------------


@pytest.mark.fault("F2", "F3")
@pytest.mark.parametrize(
    ("code", "error", "how", "advice"),
    [
        (-9, "", "was killed by SIGKILL after 100 steps", "run fewer actors"),
        (-11, "", "was killed by SIGSEGV after 100 steps", "Look for it"),
        (-15, "", "was killed by SIGTERM after 100 steps", "Find out what sent it"),
        (-63, "", "was killed by signal 63 after 100 steps", "Find out what sent it"),
        (0, "", "exited after 100 steps without being asked to", "os._exit"),
        (1, "KeyError: 'x'", "failed: KeyError: 'x'", "Fix what raised it"),
        (1, "MemoryError", "failed: MemoryError (it held up to 1536 MiB)", "Run fewer actors"),
        (1, "_ArrayMemoryError: 9 GiB", "failed: _ArrayMemoryError: 9 GiB", "Run fewer actors"),
        (1, "ConnectionLost: the connection to the learner at x", "lost its connection", "network"),
        (3, "", "exited with code 3 after 100 steps", "os._exit"),
    ],
)
def test_ends_are_described_with_advice(code: int, error: str, how: str, advice: str) -> None:
    cause = cause_of(replace(KILLED, code=code, error=error, peak_bytes=1536 << 20))
    assert cause.how.startswith(how)
    assert ("held up to 1536 MiB" in cause.how) == (code == -9 or "MemoryError" in error)
    assert "held" not in cause_of(replace(KILLED, code=code, error=error)).how, "not known"
    assert advice in cause.advice
