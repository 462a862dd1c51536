"""Who is at the other end of a Unix socket."""

from __future__ import annotations

import os
import socket
import struct
import sys

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def is_own(connection: socket.socket) -> bool:
    """Whether a process of the same user, or of root, is at the other end."""
    if sys.platform != "linux":
        return True  # the mode of the socket or of its directory keeps others out
    size = _CREDENTIALS.size
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return _CREDENTIALS.unpack(credentials)[1] in {0, os.getuid()}
