"""Does a test fail if a line is wrong? Changes random lines, one at a time, and runs the tests.

    python -m benchmarks.mutations --seed 0 --count 30

Each line is changed in a copy of the repository. The tests of its room run first, then all others,
up to the first failure. Lines are drawn evenly from the rooms. A change that survives is printed
with its place, since it may be a test that is missing, or may change nothing that matters.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 1200.0

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}


@dataclass(frozen=True)
class Mutation:
    """A line of a file, and what stands there instead."""

    path: Path
    line: int
    before: str
    after: str

    def apply(self, root: Path) -> None:
        path = root / self.path
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        assert lines[self.line - 1].rstrip("\n") == self.before
        lines[self.line - 1] = self.after + "\n"
        path.write_text("".join(lines), encoding="utf-8")


def changed(node: ast.AST) -> ast.AST | None:
    """Return what a node becomes; None if it is not changed."""
    return _changed_expression(node) if isinstance(node, ast.expr) else _changed_statement(node)


def _changed_expression(node: ast.expr) -> ast.AST | None:
    new: ast.AST | None = None
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            new = ast.Compare(node.left, [SWAPS[type(op)]()], node.comparators)  # type: ignore[list-item]
        case ast.BoolOp(op=op):
            new = ast.BoolOp(SWAPS[type(op)](), node.values)  # type: ignore[arg-type]
        case ast.BinOp(op=op) if type(op) in SWAPS:
            new = ast.BinOp(node.left, SWAPS[type(op)](), node.right)  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            new = operand
        case ast.Constant(value=bool() as value):
            new = ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            new = ast.Constant(value + 1)
    return new


def _changed_statement(node: ast.AST) -> ast.AST | None:
    match node:
        case ast.Return(value=ast.expr()):
            return ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            return ast.Pass()
    return None


def mutations(path: Path) -> Iterator[Mutation]:
    """Yield each change of a single line that a file allows."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in code_nodes(ast.parse(text)):
        start, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if not start or start != end or (new := changed(node)) is None:
            continue
        line = lines[start - 1]
        if not line.isascii():
            continue  # columns count bytes
        source = ast.unparse(new)
        if not isinstance(node, ast.stmt):
            source = f"({source})"
        after = line[: node.col_offset] + source + line[node.end_col_offset :]  # type: ignore[attr-defined]
        if is_valid(lines, start, after):
            yield Mutation(path.relative_to(ROOT), start, line, after)


def code_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk the bodies of functions, without their annotations and defaults."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                yield from (
                    node
                    for node in ast.walk(statement)
                    if not isinstance(statement, ast.FunctionDef | ast.ClassDef)
                )


def is_valid(lines: list[str], number: int, after: str) -> bool:
    """Whether the file can be parsed with this line."""
    try:
        ast.parse("\n".join([*lines[: number - 1], after, *lines[number:]]))
    except SyntaxError:
        return False
    return True


def drawn(count: int, seed: int) -> list[Mutation]:
    """Draw changes evenly from the rooms."""
    rng = random.Random(seed)  # noqa: S311  # a sample of lines is no secret
    rooms = sorted(p for p in (ROOT / "asyncrl").iterdir() if p.is_dir() and p.name[0] != "_")
    found = {room: [m for p in sorted(room.rglob("*.py")) for m in mutations(p)] for room in rooms}
    order = [room for room in rooms if found[room]]
    rng.shuffle(order)
    return [rng.choice(found[order[i % len(order)]]) for i in range(count)]


def is_caught(mutation: Mutation, processes: int) -> bool:
    """Apply it to a copy, and run its room's tests, then all others."""
    with tempfile.TemporaryDirectory(prefix="mutated-") as directory:
        copy = Path(directory) / "repository"
        ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", "build", "runs", ".peers")
        shutil.copytree(ROOT, copy, ignore=ignored)
        mutation.apply(copy)
        room = Path("tests", *mutation.path.parts[1:2])
        own = [str(room)] if (copy / room).is_dir() else []
        others = ["tests", *(f"--ignore={path}" for path in own)]
        return any(fails(copy, words, processes) for words in (own, others) if words)


def fails(copy: Path, words: list[str], processes: int) -> bool:
    """Whether a test fails, or hangs."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", f"-n{processes}", *words]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(  # noqa: S603  # our own tests
            command, cwd=copy, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode not in {0, 5}


def main() -> int:
    """Draw the changes, and say which were caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--processes", type=int, default=3)
    args = parser.parse_args()
    caught = 0
    for number, mutation in enumerate(drawn(args.count, args.seed), start=1):
        began = time.monotonic()
        is_hit = is_caught(mutation, args.processes)
        caught += is_hit
        word = "caught" if is_hit else "SURVIVED"
        print(
            f"{number:3} {word:9} {mutation.path}:{mutation.line} {time.monotonic() - began:.0f} s"
        )
        print(f"      - {mutation.before.strip()}\n      + {mutation.after.strip()}", flush=True)
    print(f"{caught} of {args.count} caught")
    return 0


if __name__ == "__main__":
    sys.exit(main())
