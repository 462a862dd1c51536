"""Does a test fail if a line is wrong? Changes random lines, one at a time, and runs the tests.

    python -m benchmarks.mutations --seed 0 --count 30

Each line is changed in a copy of the repository. The tests of its room run first, then all others,
up to the first failure, which is printed. Lines are drawn evenly from the rooms. A change that
survives is a test that is missing, or changes nothing that matters.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 1800.0

_OTHER: dict[type, Any] = {ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot}
_OTHER |= {ast.In: ast.NotIn, ast.And: ast.Or, ast.Add: ast.Sub, ast.Mult: ast.Div}
_OTHER |= {other: operator for operator, other in _OTHER.items()}


def _swap(operator: ast.AST) -> Any:  # noqa: ANN401 (an operator of the same kind)
    return _OTHER.get(type(operator), type(operator))()


def _constant(value: Any) -> ast.Constant:  # noqa: ANN401 (what code can say)
    if not isinstance(value, int | float):
        return ast.Constant(value)
    return ast.Constant(not value if isinstance(value, bool) else value + 1)


# What a node becomes, by its type. One that stays the same is not drawn.
_CHANGES: dict[type, Callable[[Any], ast.AST]] = {
    ast.Compare: lambda n: ast.Compare(n.left, [_swap(op) for op in n.ops], n.comparators),
    ast.BoolOp: lambda n: ast.BoolOp(_swap(n.op), n.values),
    ast.BinOp: lambda n: ast.BinOp(n.left, _swap(n.op), n.right),
    ast.UnaryOp: lambda n: n.operand,
    ast.Constant: lambda n: _constant(n.value),
    ast.Return: lambda n: ast.Return(n.value and ast.Constant(None)),
    ast.Expr: lambda n: ast.Pass() if isinstance(n.value, ast.Call) else n,
    **dict.fromkeys((ast.AugAssign, ast.Raise), lambda _: ast.Pass()),
}


class Mutation(NamedTuple):
    """A line of a file, and what stands there instead."""

    path: Path
    number: int
    before: str
    after: str

    def changed(self) -> str:
        """Return the file's text with the change."""
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        return "".join([*lines[: self.number - 1], f"{self.after}\n", *lines[self.number :]])


def mutations(path: Path) -> Iterator[Mutation]:
    """Yield each change of a single line that the functions of a file allow."""
    text = path.read_text(encoding="utf-8")
    functions = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef))
    nodes: Iterator[Any] = (n for f in functions for part in f.body for n in ast.walk(part))
    for node in nodes:
        if type(node) in _CHANGES and node.lineno == node.end_lineno:
            new = ast.unparse(_CHANGES[type(node)](node))
            line = text.splitlines()[node.lineno - 1].encode()
            words = (new if isinstance(node, ast.stmt) else f"({new})").encode()
            after = line[: node.col_offset] + words + line[node.end_col_offset :]
            if new != ast.unparse(node):
                yield Mutation(path, node.lineno, line.decode(), after.decode())


def is_valid(mutation: Mutation) -> bool:
    """Whether it can be parsed: a pattern and a text with quotes may not."""
    with suppress(SyntaxError):
        return bool(ast.parse(mutation.changed()))
    return False


def drawn(count: int, seed: int) -> Iterator[Mutation]:
    """Draw changes evenly from the rooms."""
    rng = random.Random(seed)  # noqa: S311 (a sample of lines is no secret)
    rooms = sorted(path.parent for path in (ROOT / "asyncrl").glob("*/__init__.py"))
    rng.shuffle(rooms)
    found = {room: sorted({m for p in room.rglob("*.py") for m in mutations(p)}) for room in rooms}
    for room in (rooms * count)[:count]:
        yield next(filter(is_valid, iter(partial(rng.choice, found[room]), None)))


def caught_by(mutation: Mutation, processes: int) -> str:
    """Return the first test that fails with a change; "" if none does."""
    where = mutation.path.relative_to(ROOT)
    room = f"tests/{where.parts[1]}"
    ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", "build", "runs", ".peers")
    with tempfile.TemporaryDirectory(prefix="mutated-") as directory:
        copy = shutil.copytree(ROOT, Path(directory) / "repository", ignore=ignored)
        (copy / where).write_text(mutation.changed(), encoding="utf-8")
        run = partial(failure, copy, f"-n{processes}")
        return run(room) or run("tests", f"--ignore={room}")


def failure(copy: Path, *words: str) -> str:
    """Return the first test that fails, or how pytest ended; "" if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", *words]
    env = os.environ | {"PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(command, cwd=copy, env=env, stdout=subprocess.PIPE, timeout=TIMEOUT_S)  # noqa: PLW1510, S603
    except subprocess.TimeoutExpired:
        return "no end of the tests"
    said = re.findall(r"^(?:FAILED|ERROR) .*", done.stdout.decode(), re.MULTILINE)
    return next(iter(said), f"exit code {done.returncode}") if done.returncode else ""


def main() -> None:
    """Draw the changes, and print what caught them."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in {"seed": 0, "count": 30, "processes": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    args = parser.parse_args()
    survived = 0
    for mutation in drawn(args.count, args.seed):
        by = caught_by(mutation, args.processes)
        survived += not by
        print(f"{mutation.path.relative_to(ROOT)}:{mutation.number} {by or 'SURVIVED'}")
        print(f"  - {mutation.before.strip()}\n  + {mutation.after.strip()}", flush=True)
    print(f"{args.count - survived} of {args.count} caught")


if __name__ == "__main__":
    main()
