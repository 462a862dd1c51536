"""asyncrl's command line, which notes every secret key that it makes in a file of its caller.

python -m tests.support.watched_run NOTES ARGUMENTS...
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

from asyncrl.cli.main import main as command_line
from asyncrl.transport.zeromq_socket import Curve

__all__: list[str] = []


def main() -> None:
    """Run the command, with notes taken."""
    notes, make = Path(sys.argv[1]), Curve.make
    sys.argv = ["asyncrl", *sys.argv[2:]]

    def noted(*arguments: bytes) -> Curve:
        made = make(*arguments)
        with notes.open("ab") as file:
            file.write(made.secret + b"\n")
        return made

    with patch.object(Curve, "make", noted):
        command_line()


if __name__ == "__main__":
    main()
