"""A network of two ends on this machine, whose cable can be pulled. Needs root, and Linux."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import Self

from benchmarks.chaos.worlds import Numbered, NumberedBatch

_NEW_NETWORK = 0x40000000


class Link:
    """A pair of connected interfaces: one here, one in a network namespace of its own."""

    def __init__(self) -> None:
        number = os.getpid() % 250 + 1
        self.namespace = f"chaos{os.getpid()}"
        self.here, self._there = f"ch{os.getpid()}a", f"ch{os.getpid()}b"
        self.address = f"10.213.{number}.1"
        self._far_address = f"10.213.{number}.2"

    @staticmethod
    def reason_not() -> str:
        """Say why there can be none here; empty if there can."""
        if os.geteuid() or not shutil.which("ip"):
            return "only root may make networks, with the command ip"
        try:
            with Link():
                return ""
        except subprocess.CalledProcessError as error:
            return f"no network can be made: {error.stderr.strip()}"

    def pull(self) -> None:
        """Pull the cable: no end is told."""
        _ip("link", "set", self.here, "down")

    def plug(self) -> None:
        """Put it in again."""
        _ip("link", "set", self.here, "up")

    def __enter__(self) -> Self:
        try:
            self._make()
        except subprocess.CalledProcessError:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _make(self) -> None:
        there = ("-n", self.namespace)
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self.here, "type", "veth", "peer", "name", self._there)
        _ip("link", "set", self._there, "netns", self.namespace)
        _ip("addr", "add", f"{self.address}/24", "dev", self.here)
        _ip(*there, "addr", "add", f"{self._far_address}/24", "dev", self._there)
        _ip("link", "set", self.here, "up")
        _ip(*there, "link", "set", self._there, "up")

    def _remove(self) -> None:
        for what in (("link", "del", self.here), ("netns", "del", self.namespace)):
            subprocess.run(["ip", *what], check=False, capture_output=True)  # noqa: S603, S607


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)  # noqa: S603, S607


@dataclass(frozen=True)
class FarAway:
    """Makes environments, and moves their actor's process to the far end of a link."""

    world: Numbered
    namespace: str
    learner: int = field(default_factory=os.getpid)

    def __call__(self) -> NumberedBatch:
        """Move, unless this is the learner, which only looks at the environment."""
        if os.getpid() != self.learner:
            with open(f"/run/netns/{self.namespace}", "rb") as file:  # noqa: PTH123
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), _NEW_NETWORK):
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
        return self.world()
