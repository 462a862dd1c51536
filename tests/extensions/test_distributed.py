"""A group of ranks: what it says when one of them is missing. Sums are faked; see tests/cli."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.core.errors import ConfigError, NonFiniteModel, RankFailed
from asyncrl.core.ranks import Place, RanksConfig
from asyncrl.extensions.ranks import distributed
from asyncrl.extensions.ranks.distributed import ProcessGroup
from asyncrl.extensions.ranks.lockstep import STORE_FILE
from asyncrl.extensions.ranks.shared_sums import LateRanks

PLACE = Place(rank=0, world=2, local_world=2)
GONE = 4_194_304  # above the largest number of a process


class FakeGroup(ProcessGroup):
    """Rank 0 of two, whose other rank is in the test."""

    def __init__(self, other: Tensor | None = None, error: str = "") -> None:
        self.rank, self.world, self.place = 0, 2, PLACE
        self.other, self.error = other, error
        self._timeout_s, self._open = 5.0, True
        self._store: Any = dist.HashStore()  # type: ignore[attr-defined]
        self.post("process", f"{os.getpid()} {socket.gethostname()}")

    def other_posts(self, key: str, text: str) -> None:
        self._store.set(f"{key}/1", text)

    def _part(self) -> None:
        self._open = False


@pytest.fixture(autouse=True)
def patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Wait for no rank: all that others say is there."""
    monkeypatch.setattr(distributed, "_POSTED_S", 0.0)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.delenv(STORE_FILE, raising=False)
    return monkeypatch


def summed(group: FakeGroup, patch: pytest.MonkeyPatch, values: Tensor) -> Tensor:
    def all_reduce(there: Tensor) -> None:
        if group.error:
            raise RuntimeError(group.error)
        if there.dtype == torch.float32 and group.other is not None:
            there += group.other  # numbers that ranks exchange are float64

    patch.setattr(dist, "all_reduce", all_reduce)
    return group.sum(values)


HERE, THERE = socket.gethostname(), "elsewhere"
LOST, SILENT = "Connection reset by peer", "Timed out waiting 5000ms for recv operation to complete"


@pytest.mark.parametrize(
    ("error", "posted", "state", "names"),
    [
        (LOST, ("failed", "OutOfMemory: no memory"), "", "rank 1 failed: OutOfMemory: no memory"),
        (LOST, ("process", f"77 {HERE}"), "", "rank 1 ended without an error.* process 77"),
        (SILENT, ("process", f"77 {HERE}"), "T", "rank 1 is stopped, as by.* process 77"),
        (LOST, ("runs", "yes"), "", "connection between the ranks was lost"),
        (SILENT, ("process", f"77 {THERE}"), "", r"rank 1 did not .* 5 s"),
    ],
)
def test_what_became_of_another_rank_is_said(
    error: str, posted: tuple[str, str], state: str, names: str, patch: pytest.MonkeyPatch
) -> None:
    group = FakeGroup(error=error)
    group.other_posts(*posted)
    patch.setattr(distributed, "process_state", lambda _: state)
    with pytest.raises(RankFailed, match=names):
        summed(group, patch, torch.ones(1))
    with pytest.raises(RankFailed, match="has left the group"):
        group.exchange([1.0])


@pytest.mark.parametrize(
    ("values", "other", "names"),
    [([1.0, float("nan")], 0.0, "rank 0 became NaN"), ([3e38], 3e38, "of none alone")],
)
def test_a_rank_with_a_number_that_is_not_finite_is_named(
    values: list[float], other: float, names: str, patch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NonFiniteModel, match=names):
        summed(FakeGroup(torch.tensor(other)), patch, torch.tensor(values))


def test_of_silent_ranks_only_those_that_are_late_are_named(patch: pytest.MonkeyPatch) -> None:
    """Rank 1 has taken part, and waits for rank 2 as this one does."""

    class Waits:
        def sum(self, _: Tensor) -> None:
            raise LateRanks([2])

    group = FakeGroup()
    group.world, group._shared = 3, Waits()  # type: ignore[assignment]
    with pytest.raises(RankFailed, match=r"^rank 2 did not take part in a step within 5 s"):
        summed(group, patch, torch.ones(1))


def test_a_failure_is_posted_and_that_of_another_rank_is_not() -> None:
    group = FakeGroup()
    group.leave(ValueError("bad"))
    group.leave(ValueError("worse"))  # it has left already
    assert group.posted("failed") == {0: "ValueError: bad"}
    other = FakeGroup()
    other.leave(RankFailed("rank 1 failed"))
    assert other.posted("failed") == {}


def test_a_text_is_awaited_unless_its_rank_fails_or_is_gone() -> None:
    group = FakeGroup()
    group.other_posts("settles", "0 /tmp/x")
    assert group.wait_posted("settles", 1) == "0 /tmp/x"
    for key, text, names in (
        ("process", f"{GONE} {HERE}", r"rank 1 ended without an error.* has posted no other"),
        ("left", "yes", "rank 1 has left; it has posted no other"),
        ("failed", "ConfigError: bad", "rank 1 failed: ConfigError: bad"),
    ):
        group.other_posts(key, text)
        with pytest.raises(RankFailed, match=names):
            group.wait_posted("other", 1)
    assert group.wait_posted("left", 1) == "yes", "what is there is read all the same"
    group.leave()
    assert group.posted("left") == {0: "yes", 1: "yes"}


def test_learners_of_one_machine_stay_on_its_loopback(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("MASTER_ADDR", "localhost")
    distributed._choose_interface(PLACE, RanksConfig())
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.mark.parametrize(
    ("address", "local", "names"),
    [("10.0.0.5", 2, "MASTER_ADDR.*'10.0.0.5'"), ("localhost", 1, "1 of 2 learners")],
)
def test_several_machines_need_a_switch(
    address: str, local: int, names: str, patch: pytest.MonkeyPatch
) -> None:
    patch.setenv("MASTER_ADDR", address)
    place = Place(rank=0, world=2, local_world=local)
    with pytest.raises(ConfigError, match=f"{names}.*several_machines.*GLOO_SOCKET_IFNAME"):
        distributed._choose_interface(place, RanksConfig())
    distributed._choose_interface(place, RanksConfig(several_machines=True))
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_a_rank_ends_soon_after_what_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([100, 100])
    ended, exited = threading.Event(), threading.Event()
    monkeypatch.setattr(distributed, "_PARENT_S", 0.0)
    monkeypatch.setattr(distributed, "_AFTER_PARENT_S", 0.0)
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 1))
    monkeypatch.setattr(os, "_exit", lambda _: exited.set())
    distributed._end_with_parent(ended.set)
    assert ended.wait(10.0)
    assert exited.wait(10.0)
