"""The fault model: what may go wrong, what is promised then, and which tests prove each promise.

A test that proves a row carries its number: `@pytest.mark.fault("F1")`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

_TESTS = Path(__file__).parent.parent

FAULT_MODEL = {
    "F1": "an actor is killed: its slot is filled again, and what it had not sent is counted",
    "F2": "an actor crashes, or leaves with any code, 0 too: a failure with its signal and place",
    "F3": "an actor runs out of memory: said so, with how much it had",
    "F4": "an environment raises: class, message and traceback reach the caller",
    "F5": "an actor cannot start at all: one error at once, and no loop of restarts",
    "F6": "an environment hangs: the actor is replaced, and its stacks are reported",
    "F7": "an actor crashes again and again: waits grow, and a budget ends the run by name",
    "F8": "an environment gives NaN, infinity or another type: refused, and never in replay",
    "F9": "a loss or a parameter is no longer finite: never published, never saved",
    "F10": "the learner or a thread of it fails: the first error surfaces, and nothing is left",
    "F11": "the learner is killed: no actor, and nothing that an actor started, outlives it",
    "F12": "Ctrl-C: a checkpoint, exit code 130, and no word from children",
    "F13": "Ctrl-C again: an end at once, and no half of a checkpoint is seen",
    "F14": "SIGTERM and SIGHUP: as Ctrl-C, with other exit codes; nohup is respected",
    "F15": "SIGUSR1: a checkpoint, and the run continues; the user's handler is called too",
    "F16": "the learner is stopped and continues: no actor is restarted for it",
    "F17": "the disk is full or broken: training continues, and old checkpoints stay whole",
    "F18": "a kill while a checkpoint is written: the newest whole one loads",
    "F19": "the power fails: data is on disk before it is shown, in that order",
    "F20": "a checkpoint is damaged: found before anything is built, and the one before loads",
    "F21": "a run is resumed: it is the same run",
    "F22": "a message is malformed or hostile: counted, never stored, never run",
    "F23": "a message is too large, or grows when decoded: refused before memory is taken",
    "F24": "connections in masses, or half-open ones: existing connections continue",
    "F25": "an environment changes its spaces, or an actor has other ones: refused by name",
    "F26": "an actor of an earlier run comes back: not heard",
    "F27": "a port or a path is taken: one error that names it",
    "F28": "the network parts and heals: actors go on without a restart",
    "F29": "one actor is slow: the others are not",
    "F30": "the learner is slow: actors wait, in bounded memory",
    "F31": "models are lost, late or out of order: no actor acts without one, and its age is known",
    "F32": "a message comes twice or in another order: stored at most once",
    "F33": "clocks jump: no deadline notices",
    "F34": "the device runs out of memory: one clear error, and a checkpoint",
    "F35": "kills of every kind: nothing is left in shared memory or temporary directories",
    "F36": "two runs in one directory: the second is refused by the first one's name",
    "F37": "other versions on the other side, or in a checkpoint: refused, and both are named",
    "F38": "a user's fork start method and threads: no harm",
    "F39": "the run directory is removed or renamed: it is made again, and the model is in it",
}


@cache
def proofs() -> dict[str, list[str]]:
    """Return for each row where its mark stands, as the sources have it."""
    found = defaultdict(list)
    for path in sorted(_TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault":
                place = f"{path.relative_to(_TESTS).as_posix()}:{node.lineno}"
                for row in node.args:
                    found[ast.literal_eval(row)].append(place)
    return dict(found)
