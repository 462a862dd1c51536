"""Feeds the decoder with bytes that are chosen by which of its lines they reach.

Needs `atheris`. Ends with an exit code other than 0 at the first input that raises anything but
the decoder's own error, or that takes a second.

    python -m tests.support.guided_fuzz RUNS DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["asyncrl.transport.wire", "asyncrl.transport.inference_wire", "asyncrl.core.messages"]
):
    from tests.support.hostile_messages import MESSAGES, accepted, joined, split

__all__: list[str] = []

_MAX_BYTES = 4096


def _decode(data: bytes) -> None:
    accepted(split(data))


def main() -> None:
    """Fuzz, from one message of each kind on."""
    runs, directory = int(sys.argv[1]), Path(sys.argv[2])
    corpus = directory / "corpus"
    corpus.mkdir()
    for number, frames in enumerate(MESSAGES):
        (corpus / str(number)).write_bytes(joined(frames))
    options = [f"-runs={runs}", f"-max_len={_MAX_BYTES}", "-timeout=1", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={directory}/", str(corpus)], _decode)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
