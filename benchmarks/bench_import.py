"""What does `import asyncrl` cost? Fresh interpreters, against `import numpy`.

Also checks that it loads none of the heavy packages: they come when a name is first used.

    python -m benchmarks.bench_import
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

from benchmarks.common import compare, in_turns, make_parser, provenance, save, show

HEAVY = frozenset({"torch", "zmq", "gymnasium"})

_PROGRAM = """\
import json, sys, time
began = time.perf_counter()
import {module}
print(json.dumps([time.perf_counter() - began, sorted(sys.modules)]))
"""


def import_seconds(module: str) -> float:
    """Return how long a fresh interpreter takes for an import, without its own start."""
    program = _PROGRAM.format(module=module)
    printed = subprocess.check_output(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", program], text=True
    )
    seconds, modules = json.loads(printed)
    if module == "asyncrl":
        loaded = HEAVY & set(modules)
        assert not loaded, f"import asyncrl loads {sorted(loaded)}"
    return float(seconds)


def main() -> None:
    """Measure in turns; the first round, which fills the file cache, does not count."""
    args = make_parser(__doc__, repeats=7).parse_args()
    origin = provenance()
    measures = {name: partial(import_seconds, name) for name in ("asyncrl", "numpy")}
    in_turns(measures, 1)
    rounds = in_turns(measures, args.repeats)
    what = "`import asyncrl` / `import numpy`"
    path = save(
        args.results,
        "import",
        question=__doc__,
        settings={"repeats": args.repeats},
        comparisons=[compare(rounds, "asyncrl", "numpy", what=what, unit="s")],
        origin=origin,
        details=rounds,
    )
    show(path)


if __name__ == "__main__":
    main()
