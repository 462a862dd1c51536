"""Signals are heard by a thread, each of them, and a forked child's by nobody here."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from asyncrl.cli.signals import hearing
from tests.support.helpers import wait_until

pytestmark = pytest.mark.fault("F13")


@contextmanager
def answered(number: signal.Signals) -> Iterator[None]:
    """Have Python answer a signal, and do nothing."""
    before = signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_each_signal_is_heard_in_a_thread_of_its_own() -> None:
    heard: list[tuple[int, int]] = []
    with (
        answered(signal.SIGTERM),
        answered(signal.SIGHUP),
        hearing(lambda number: heard.append((number, threading.get_ident()))),
    ):
        for count, number in enumerate([signal.SIGTERM, signal.SIGHUP, signal.SIGTERM], 1):
            os.kill(os.getpid(), number)
            wait_until(lambda count=count: len(heard) == count, 20, "it to be heard")
    assert [number for number, _ in heard] == [signal.SIGTERM, signal.SIGHUP, signal.SIGTERM]
    assert threading.get_ident() not in {thread for _, thread in heard}


def test_nothing_is_left_afterwards() -> None:
    threads, descriptors = threading.active_count(), psutil.Process().num_fds()
    others, told = os.pipe()
    os.set_blocking(told, False)
    before = signal.set_wakeup_fd(told)
    try:
        with hearing(lambda _: None):
            assert threading.active_count() == threads + 1
    finally:
        assert signal.set_wakeup_fd(before) == told, "whoever listened before still does"
        os.close(others)
        os.close(told)
    assert threading.active_count() == threads
    assert psutil.Process().num_fds() == descriptors


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12, of any fork
def test_what_a_forked_child_is_told_is_not_heard_by_its_parent() -> None:
    heard: list[int] = []
    with answered(signal.SIGTERM), answered(signal.SIGHUP), hearing(heard.append):
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        os.kill(os.getpid(), signal.SIGHUP)
        wait_until(lambda: heard, 20, "the parent's own")
    assert heard == [signal.SIGHUP]
