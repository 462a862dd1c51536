"""Turns of several learners, as one of them sees them; the others are numbers in a list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pytest

from asyncrl.core.errors import ConfigError, RankFailed
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.ranks import Place, place_in, refuse_several
from asyncrl.extensions.ranks.lockstep import Lockstep, Totals, check_alike

OWN = Totals(env_steps=10, produced=9, stored=7, dropped=1, inserted=7, sampled=14, incarnation=2)
OTHER = Totals(env_steps=5, produced=4, stored=3, lost=1, inserted=3, sampled=6, incarnation=1)


class Pair:
    """Rank 0 of two; what the other one says is set beforehand."""

    rank, world = 0, 2

    def __init__(self) -> None:
        self.says: dict[str, float] = {}
        self.texts: dict[int, str] = {}
        self.waited: list[tuple[str, int, float]] = []
        self.left: list[BaseException | None] = []
        self.gone = False

    def exchange(self, numbers: list[float]) -> list[float]:
        if self.gone:
            raise RankFailed("rank 1 has ended")
        flags = ["ready", "impatient", "begun", "stop", "urgent", "kept", "passing", "asked"]
        others = [self.says.get(name, 0.0) for name in flags]
        slots = [0, OTHER.stored, 0, 0, 0, 2]  # of rank 0 and 1 in turn
        if len(numbers) == len(asdict(OWN)) + len(slots):  # counters alone
            others = []
        said = [*others, *slots, *asdict(OTHER).values()]
        return [mine + theirs for mine, theirs in zip(numbers, said, strict=True)]

    def sum(self, values: object) -> object:
        return values

    def post(self, key: str, text: str) -> None:
        self.texts[self.rank] = text

    def posted(self, key: str) -> dict[int, str]:
        return self.texts

    def wait_posted(self, key: str, rank: int, more_s: float = 0.0) -> str:
        self.waited.append((key, rank, more_s))
        return "yes"

    def leave(self, error: BaseException | None = None) -> None:
        self.left.append(error)


def lockstep(clock: Callable[[], float] = lambda: 0.0) -> tuple[Lockstep, Pair, Interrupter]:
    """Return the first of two learners, the other one, and what ends the run."""
    pair, interrupter = Pair(), Interrupter()
    one = Lockstep(pair, interrupter, lambda: OWN, patience_s=1.0, clock=clock)
    return one, pair, interrupter


def test_a_step_is_taken_when_all_have_a_batch() -> None:
    one, pair, _ = lockstep()
    assert not one.turn(ready=False)
    assert not one.turn(ready=True)
    pair.says = {"ready": 1, "begun": 1}
    assert not one.turn(ready=False)
    assert one.turn(ready=True)
    assert one.steps_without_batch == 0


def test_after_a_while_learners_go_on_without_one_that_has_no_batch() -> None:
    one, pair, _ = lockstep(iter([0.0, 0.9, 1.1, 1.1]).__next__)
    pair.says = {"begun": 1}
    # patience begins again after the step
    assert [one.turn(ready=True) for _ in range(4)] == [False, False, True, False]


def test_a_learner_takes_part_without_rows_only_after_its_first_batch() -> None:
    one, pair, _ = lockstep()
    pair.says = {"ready": 1, "begun": 1, "impatient": 1}
    assert not one.turn(ready=False)
    assert one.turn(ready=True)
    assert one.turn(ready=False)
    assert one.steps_without_batch == 1
    assert one.turn(ready=True)
    assert one.record()["rank/0/steps_without_batch"] == 1


def test_all_stop_at_the_turn_at_which_one_must() -> None:
    one, pair, interrupter = lockstep()
    pair.says = {"ready": 1, "begun": 1, "stop": 1, "urgent": 1}
    pair.texts = {1: "interrupted by SIGTERM"}
    assert not one.turn(ready=True)
    assert one.stopped
    assert interrupter.urgent
    assert interrupter.reason == "interrupted by SIGTERM (rank 1)"


def test_an_own_reason_to_stop_is_posted_and_waits_for_the_turn() -> None:
    one, pair, interrupter = lockstep()
    interrupter.stop("500 optimisation steps are done")
    assert not one.stopped
    assert not one.turn(ready=True)
    assert one.stopped
    assert pair.texts == {0: "500 optimisation steps are done"}
    assert interrupter.reason == "500 optimisation steps are done"
    assert not interrupter.urgent


@pytest.mark.parametrize("kind", ["kept", "passing"])
def test_others_hear_at_the_same_step_what_rank_0_has_saved(kind: str) -> None:
    one, pair, _ = lockstep()
    one.say_saved(passing=kind == "passing")
    one.turn(ready=True)
    assert one.take_saved() == kind
    assert one.take_saved() is None
    pair.rank = 1
    pair.says = {kind: 1}
    one.turn(ready=True)
    assert one.take_saved() == kind


def test_rank_0_saves_when_another_rank_was_asked_to() -> None:
    one, pair, interrupter = lockstep()
    pair.says = {"asked": 1}
    one.say_saved(passing=False)
    one.turn(ready=True)
    assert not interrupter.save_requested, "it has just saved"
    one.turn(ready=True)
    assert interrupter.save_requested


def test_learner_whose_loop_has_ended_takes_the_others_along() -> None:
    one, pair, interrupter = lockstep()
    one.stop()
    assert one.stopped
    assert pair.texts == {0: "the loop ended"}
    pair.gone = True
    one.stop()  # not again
    assert interrupter.reason == "the loop ended"


def test_counters_are_those_of_all_learners() -> None:
    one, _, _ = lockstep()
    one.turn(ready=False)
    assert one.totals.env_steps == 15
    record = one.record()
    assert (record["samples_total"], record["ledger/in_flight"]) == (10, 13 - 10 - 1 - 1)
    assert record["samples_per_insert"] == 2
    assert (record["rank/0/stored"], record["rank/1/stored"]) == (7, 3)
    assert record["rank/1/steps_without_batch"] == 2
    saved = one.saved({"limiter": {"inserted": 7}, "env_steps": 10, "incarnation": 2})
    assert (saved["env_steps"], saved["incarnation"], saved["ranks"]) == (15, 3, 2)
    assert saved["ledger"] == {"produced": 13, "stored": 10, "dropped": 1, "lost": 1}
    assert saved["limiter"] == {"inserted": 7}


def test_the_last_counters_are_added_up_if_all_are_still_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, pair, _ = lockstep()
    one.settle(more_s=60.0)  # rank 0 may still evaluate
    assert pair.waited == [("settles", 0, 60.0), ("settles", 1, 60.0)]
    assert one.totals.env_steps == 15
    pair.gone = True
    one.settle()
    assert "rank 1 has ended" in caplog.text
    assert pair.left == [None, None]


def test_a_number_that_differs_between_learners_is_named() -> None:
    class Differs(Pair):
        def exchange(self, numbers: list[float]) -> list[float]:
            return [numbers[0], 300.0]

    with pytest.raises(ConfigError, match="steps differs: 200 in rank 0, 300 in rank 1"):
        check_alike(Differs(), {"steps": 200})


def test_the_environment_of_torchrun_is_read() -> None:
    assert place_in({}) is None
    assert place_in({"WORLD_SIZE": "1", "RANK": "0"}) is None
    given = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    place = place_in({**given, "TORCHELASTIC_RESTART_COUNT": "3"})
    assert place == Place(rank=1, world=4, local_world=2, restarts=3)
    for rank, world in ("2", "2"), ("0", "two"), ("-1", "2"):
        with pytest.raises(ConfigError, match=f"RANK='{rank}', WORLD_SIZE='{world}'"):
            place_in({"RANK": rank, "WORLD_SIZE": world})


def test_what_has_one_learner_refuses_several(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_several("train_sync")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="train_sync trains with one learner, but 2"):
        refuse_several("train_sync")
