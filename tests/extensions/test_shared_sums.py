"""Sums in shared memory: between threads here, between processes in `tests/cli`."""

from __future__ import annotations

import os
import stat
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from asyncrl.core.errors import NonFiniteModel, RankFailed
from asyncrl.extensions.ranks import shared_sums
from asyncrl.extensions.ranks.shared_sums import LateRanks, SharedSums, connect
from tests.support.ranks import ThreadRanks

_DEADLINE_S = 60.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (700, 801)])  # the last one is of many pieces
def test_all_ranks_get_the_same_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(0)
    given = [(100 * torch.randn(shape, generator=draw)).to(dtype) for _ in range(3)]
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    expected = (given[0].to(wide) + given[1] + given[2]).to(dtype)
    ranks = ThreadRanks(3)
    for _ in range(3):  # both sets of parts, and the first one again
        values = [one.clone() for one in given]
        sums = ranks.run(
            [partial(one.sum, own) for one, own in zip(ranks.members, values, strict=True)]
        )
        for own, total in zip(values, sums, strict=True):
            assert own is total
            assert torch.equal(total, expected)


@pytest.mark.parametrize(
    ("values", "names"), [((1.0, float("nan")), "of rank 1 became"), ((3e38, 3e38), "none alone")]
)
def test_a_rank_whose_values_are_not_finite_is_named(
    values: tuple[float, float], names: str
) -> None:
    ranks = ThreadRanks(2)

    def sums(one: SharedSums) -> None:
        with pytest.raises(NonFiniteModel, match=names):
            one.sum(torch.tensor([values[one.rank]]))
        assert one.sum(torch.ones(1)).item() == 2.0, "the ranks are still in step"

    ranks.run([partial(sums, one) for one in ranks.members])


def test_a_silent_rank_ends_a_wait_and_those_that_are_there_are_not_named() -> None:
    ranks = ThreadRanks(4, timeout_s=0.01)
    with pytest.raises(LateRanks, match="ranks 0, 1, 2 did not"):
        ranks.members[3].sum(torch.ones(1))  # it is there from now on
    with pytest.raises(LateRanks, match="ranks 0, 2 did not") as late:
        ranks.members[1].sum(torch.ones(1))
    assert late.value.ranks == (0, 2)


def test_a_rank_that_is_gone_ends_a_wait() -> None:
    ranks = ThreadRanks(2)
    leaving = threading.Timer(0.01, ranks.members[1].close)  # before or within the wait
    leaving.start()
    with pytest.raises(ConnectionError):
        ranks.members[0].sum(torch.ones(1))
    leaving.join()
    with pytest.raises(ConnectionError, match="this rank has left"):
        ranks.members[1].sum(torch.ones(1))


def test_ranks_that_sum_different_things_end() -> None:
    ranks = ThreadRanks(2)

    def sums(one: SharedSums) -> None:
        with pytest.raises(RankFailed, match=r"\(1, 8\) in rank 0"):
            one.sum(torch.ones(2 + one.rank))

    ranks.run([partial(sums, one) for one in ranks.members])


class Meeting:
    """Lets threads connect; a rank may offer something else than it has."""

    def __init__(self, world: int, instead: str | None = None) -> None:
        self.world, self.instead = world, instead
        self.offers: dict[int, str] = {}
        self.real: list[str] = []
        self.agreed: list[bool] = []
        self.barrier = threading.Barrier(world, timeout=_DEADLINE_S)

    def connect(self, rank: int) -> SharedSums | None:
        return connect(
            rank, self.world, _DEADLINE_S, exchange=partial(self.exchange, rank), agree=self.agree
        )

    def exchange(self, rank: int, offer: str) -> dict[int, str]:
        self.real.append(offer)
        self.offers[rank] = offer if rank or self.instead is None else self.instead
        self.barrier.wait()
        return self.offers

    def agree(self, yes: bool) -> bool:
        self.agreed.append(yes)
        self.barrier.wait()
        return all(self.agreed)

    def run(self) -> list[SharedSums | None]:
        with ThreadPoolExecutor(self.world) as pool:
            return [*pool.map(self.connect, range(self.world))]


def pipes_of(meeting: Meeting) -> int:
    """Return how many ends of pipes that ranks have offered are open."""
    inodes = [number for offer in meeting.real for number in offer.split()[2::2]]
    names = {f"pipe:[{inode}]" for inode in inodes}
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # another thread has closed it
            links.append(str(link.readlink()))
    return sum(link in names for link in links)


linux = pytest.mark.skipif(sys.platform != "linux", reason="needs memfd_create and /proc")


@linux
def test_ranks_connect_by_what_has_no_name() -> None:
    meeting = Meeting(3)
    sums = [one for one in meeting.run() if one is not None]
    with ThreadPoolExecutor(3) as pool:
        totals = [*pool.map(lambda one: one.sum(torch.tensor(1.0)).item(), sums)]
    assert totals == [3.0] * 3
    assert pipes_of(meeting) == 12, "of each rank two for each other one"
    for one in sums:
        one.close()
    assert pipes_of(meeting) == 0


@linux
@pytest.mark.parametrize("instead", ["", "nonsense", "4194304 1 1 1 1", "self 0 7 0 7", "fails"])
def test_no_rank_shares_memory_if_one_cannot(instead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = shared_sums._offer

    def offered(rank: int, *args: Any) -> Any:
        if rank == 1 and instead == "fails":
            raise OSError("Too many open files")
        return offer(rank, *args)

    monkeypatch.setattr(shared_sums, "_offer", offered)
    said = None if instead == "fails" else instead.replace("self", str(os.getpid()))
    meeting = Meeting(2, said)
    assert meeting.run() == [None, None]
    assert pipes_of(meeting) == 0


@linux
def test_the_memory_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    truncate = os.truncate

    def looked(fd: int, size: int) -> None:
        truncate(fd, size)
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))

    monkeypatch.setattr(os, "truncate", looked)
    for one in Meeting(2).run():
        assert one is not None
        one.close()
    assert modes == [0o600] * 2
