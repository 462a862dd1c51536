"""What an actor is to run, on its way there: in memory that has no name, so nobody can open it.

The launcher fills such memory and sends a descriptor of it over its socket to the helper process,
from which the actor inherits it. Each of them closes its own at once, and the memory goes with the
last; an actor has closed its own before it runs a line of the user's. An actor's key may be in it,
and it may be large.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile

if sys.platform == "linux":
    _SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def make_body(data: bytes) -> int:
    """Return a descriptor of which these bytes can be read once; others cannot come by them."""
    descriptor = _nameless()
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)  # all copies of a descriptor read on from one place
        if sys.platform == "linux":
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def identity(descriptor: int) -> int:
    """Return a number by which a descriptor is known in any process, while one of it is open."""
    return os.fstat(descriptor).st_ino


def take_body(descriptor: int) -> bytes:
    """Return what is to run, and close the descriptor."""
    with open(descriptor, "rb") as file:
        return file.read()


def _nameless() -> int:
    if sys.platform == "linux":
        return os.memfd_create("asyncrl-body", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    # Elsewhere a file that has lost its name before anything is written to it.
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
