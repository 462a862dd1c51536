"""Sets what `ps` and `top` show for a process. Under Linux; elsewhere it has no effect."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_MOST_BYTES = 15
"""Length of a process name under Linux."""

_SELF = Path("/proc/self")
_ARG_START = 45
"""Position of the command line's address in `/proc/self/stat`, counted after the name."""


def set_name(name: str) -> None:
    """Set the name in `top` and `ps -e`, cut to 15 bytes; a number at its end is kept.

    Hyphens replace spaces: Slurm's `proctrack/linuxproc` cannot end a process with a space in its
    name, and takes the node out of service.
    """
    words, _, number = name.rpartition(" ")
    if number.isdigit():
        name = f"{words[: _MOST_BYTES - 1 - len(number)]} {number}"
    with suppress(OSError):
        (_SELF / "comm").write_bytes(name.replace(" ", "-").encode()[:_MOST_BYTES])


def set_title(title: str) -> None:
    """Set the title in `ps -ef`, which replaces the command line, too.

    The kernel reads the command line from the memory of the process. It is overwritten here if it
    has the expected content. The package setproctitle would be a further dependency.
    """
    set_name(title)
    with suppress(OSError, ValueError, IndexError):
        fields = (_SELF / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        start, end = (int(field) for field in fields.split()[_ARG_START : _ARG_START + 2])
        with (_SELF / "mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            if memory.read(end - start) == (_SELF / "cmdline").read_bytes():
                memory.seek(start)
                memory.write(title.encode()[: end - start - 1].ljust(end - start, b"\0"))
