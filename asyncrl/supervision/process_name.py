"""What `ps` and `top` show of a process. Under Linux; elsewhere nothing changes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_MOST_BYTES = 15
"""That Linux keeps of a name."""

_SELF = Path("/proc/self")
_ARG_START = 45
"""Where the address of the command line is in `/proc/self/stat`, counted after the name."""


def set_name(name: str) -> None:
    """Have `top` and `ps -e` show a name, cut to 15 bytes; a number at its end stays whole."""
    words, _, number = name.rpartition(" ")
    if number.isdigit():
        name = f"{words[: _MOST_BYTES - 1 - len(number)]} {number}"
    with suppress(OSError):
        (_SELF / "comm").write_bytes(name.encode()[:_MOST_BYTES])


def set_title(title: str) -> None:
    """Have `ps -ef` show a title in place of the command line, too.

    The kernel reads the command line from the memory of the process, which is overwritten here, if
    it holds what is expected. A package for this, setproctitle, would be one more dependency.
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
