from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.errors import ConfigError
from asyncrl.core.launcher import ActorExit, ProgressReport
from asyncrl.supervision.actor_manager import ActorManagerConfig
from asyncrl.supervision.restart_policy import (
    Drop,
    EnvRestartPolicy,
    GiveUp,
    OnException,
    Restart,
    RestartPolicy,
    RestartPolicyConfig,
    cause_of,
    hung,
)
from asyncrl.training.config import AsyncConfig
from tests.support.sample_messages import make_peer

KILLED = ActorExit(
    peer=make_peer(),
    code=-signal.SIGKILL,
    last=ProgressReport(100, 100, waiting=False),
)
RAISED = replace(KILLED, code=1, error="ValueError: no", text="Traceback ...")
STEADY = RestartPolicyConfig(jitter=0.0)


def waits(config: RestartPolicyConfig, exits: int, every_s: float = 0.0) -> list[float]:
    policy = RestartPolicy(config, seed=0)
    decisions = [policy.on_exit(KILLED, now=i * every_s) for i in range(exits)]
    assert all(isinstance(decision, Restart) for decision in decisions)
    return [decision.after_s for decision in decisions if isinstance(decision, Restart)]


@pytest.mark.fault("F7")
def test_backoff_grows_to_its_limit() -> None:
    config = replace(STEADY, backoff_s=1.0, backoff_factor=3.0, backoff_max_s=5.0)
    assert waits(config, 4) == [1.0, 3.0, 5.0, 5.0]


@pytest.mark.fault("F7")
def test_actors_that_die_together_do_not_come_back_as_one() -> None:
    policy = RestartPolicy(RestartPolicyConfig(backoff_s=1.0, jitter=0.5, max_restarts=99), seed=0)
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


@pytest.mark.fault("F4")
def test_advice_names_the_settings_that_would_let_a_run_go_on() -> None:
    end = RestartPolicy(STEADY, seed=0).on_exit(RAISED, now=0.0, others_left=1)
    assert isinstance(end, GiveUp)
    assert "on_exception to restart_env, restart or drop" in end.advice
    end = RestartPolicy(STEADY, seed=0).on_exit(RAISED, now=0.0, others_left=NO_ACTOR)
    assert isinstance(end, GiveUp)
    assert end.advice.endswith("on_exception to restart."), "no other choice fits the evaluator"


# --- exceptions ----------------------------------------------------------------------------------

NO_ACTOR = None
RAISED_AT_START = replace(RAISED, last=ProgressReport(0, 0, waiting=False))


def answer(
    on_exception: OnException, others_left: int | None, ended: ActorExit = RAISED
) -> Restart | Drop | GiveUp:
    config = replace(STEADY, on_exception=on_exception, min_actors=2)
    policy = RestartPolicy(config, seed=0)
    return policy.on_exit(ended, now=0.0, others_work=True, others_left=others_left)


@pytest.mark.fault("F4")
@pytest.mark.parametrize(
    ("on_exception", "others_left", "ended", "expected"),
    [
        ("raise", 2, RAISED, GiveUp),
        ("raise", 2, KILLED, Restart),
        ("restart", 2, RAISED, Restart),
        ("restart", NO_ACTOR, RAISED, Restart),
        ("drop_actor", 2, RAISED, Drop),
        ("drop_actor", 2, RAISED_AT_START, Drop),  # as where the number of simulators is limited
        ("drop_actor", 1, RAISED, GiveUp),  # too few would be left
        ("drop_actor", NO_ACTOR, RAISED, Restart),
        ("drop_actor", 2, KILLED, Restart),
        ("drop_actor", 2, replace(KILLED, code=3), Restart),
        ("restart_env", 2, RAISED, GiveUp),  # new environments have not helped
        ("restart_env", 2, RAISED_AT_START, Restart),  # nothing was made yet
        ("restart_env", 2, KILLED, Restart),
        ("restart_env", NO_ACTOR, RAISED, Restart),
    ],
)
def test_exceptions_are_answered_as_configured(
    on_exception: OnException, others_left: int | None, ended: ActorExit, expected: type
) -> None:
    assert isinstance(answer(on_exception, others_left, ended), expected)


def test_fewest_actors_are_no_more_than_there_are() -> None:
    restart = RestartPolicyConfig(on_exception="drop_actor", min_actors=3)
    supervision = ActorManagerConfig(restart=restart)
    assert AsyncConfig(actors=3, supervision=supervision).actors == 3
    with pytest.raises(ConfigError, match=r"min_actors is 3, but there are only 2 actors"):
        AsyncConfig(actors=2, supervision=supervision)


@pytest.mark.fault("F4", "F7")
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


@pytest.mark.fault("F4", "F5")
def test_environments_that_never_made_a_step_are_not_rebuilt() -> None:
    end = EnvRestartPolicy(STEADY, seed=0).on_failure(now=0.0, env_steps=0)
    assert isinstance(end, GiveUp)
    assert "before their first step" in end.why


# --- waits ---------------------------------------------------------------------------------------


@given(seed=st.integers(0, 1000), deaths=st.integers(1, 300), jitter=st.floats(0, 1))
def test_any_wait_lies_between_nothing_and_the_limit(seed: int, deaths: int, jitter: float) -> None:
    config = replace(STEADY, jitter=jitter, max_restarts=300)
    policy = RestartPolicy(config, seed)
    for _ in range(deaths):
        decision = policy.on_exit(KILLED, now=0.0)
        assert isinstance(decision, Restart)
        assert 0.0 <= decision.after_s <= config.backoff_max_s


@pytest.mark.fault("F2")
@pytest.mark.parametrize(
    ("code", "error", "words", "advice"),
    [
        (-9, "", "was killed by SIGKILL after 100 steps (killed", "If memory ran out, run fewer"),
        (-11, "", "was killed by SIGSEGV after 100 steps (a crash in", "Look for it in what the"),
        (-15, "", "was killed by SIGTERM after 100 steps", "Find out what sent it"),
        (-63, "", "was killed by signal 63 after 100 steps", "Find out what sent it"),
        (0, "", "exited after 100 steps without being asked to", "Look for os._exit"),
        (1, "KeyError: 'x'", "failed: KeyError: 'x'", "Fix what raised it"),
        (3, "", "exited with code 3 after 100 steps", "Look for os._exit"),
    ],
)
def test_ends_are_described_with_advice(code: int, error: str, words: str, advice: str) -> None:
    cause = cause_of(replace(KILLED, code=code, error=error))
    assert cause.how.startswith(words)
    assert cause.advice.startswith(advice)
    assert cause.advice.endswith(".")


@pytest.mark.fault("F3")
def test_kill_that_may_be_for_memory_says_how_much_there_was() -> None:
    assert "it held up to 1536 MiB" in cause_of(replace(KILLED, peak_bytes=1536 << 20)).how
    assert "held" not in cause_of(KILLED).how, "not known"


@pytest.mark.fault("F3")
def test_python_without_memory_says_how_much_there_was_and_what_to_do() -> None:
    ended = replace(RAISED, error="MemoryError", peak_bytes=1536 << 20)
    assert cause_of(ended).how == "failed: MemoryError (it held up to 1536 MiB)"
    assert cause_of(ended).advice == "Run fewer actors, or fewer environments in each."
    numpys = replace(ended, error="_ArrayMemoryError: Unable to allocate 9 GiB", peak_bytes=0)
    assert cause_of(numpys).how == "failed: _ArrayMemoryError: Unable to allocate 9 GiB"
    assert cause_of(numpys).advice == cause_of(ended).advice
