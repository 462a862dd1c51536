"""Runs the command line: `python -m asyncrl`."""

import sys

from asyncrl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
