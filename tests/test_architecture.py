"""The shape of the code: sizes, what an import loads, what is never used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import asyncrl

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "asyncrl").rglob("*.py"))

MAX_FUNCTION_LINES = 50
MAX_NESTING = 3
MAX_PUBLIC_METHODS = 10

# What may be larger than the numbers above, and why: {"asyncrl/x.py:function": "reason"}.
LARGER: dict[str, str] = {
    "asyncrl/core/callback.py:Callback": "one method for each event, and all of them do nothing",
    "asyncrl/supervision/host_launcher.py:HostLauncher": "nine are the contract of launchers",
    "asyncrl/learner/trainer.py:BaseTrainer": "custom training loops are made of its methods",
    "asyncrl/training/asynchronous.py:build_async_trainer": "half of it is a list of parts",
}

HEAVY = {"gymnasium", "msgpack", "rich", "tensorboard", "torch", "tyro", "yaml", "zmq"}

# Ways to run code that another party has sent or stored.
PICKLERS = {"cloudpickle", "dill", "joblib", "marshal", "msgpack_numpy", "pickle", "shelve"}
UNPICKLING = {
    *("recv_pyobj", "send_pyobj"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
}
UNSAFE_CALLS = {"torch.load", "yaml.load", "yaml.unsafe_load"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines_in(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def nesting(node: ast.AST, depth: int = 0) -> int:
    """How deep blocks stand in each other; an `elif` is not deeper than its `if`."""
    deepest = depth
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for child in children:
            if not isinstance(child, ast.AST) or isinstance(child, ast.FunctionDef | ast.ClassDef):
                continue
            is_elif = (
                isinstance(node, ast.If)
                and field == "orelse"
                and len(children) == 1
                and isinstance(child, ast.If)
            )
            is_block = isinstance(
                child, ast.If | ast.For | ast.While | ast.With | ast.Try | ast.Match
            )
            deepest = max(deepest, nesting(child, depth + (is_block and not is_elif)))
    return deepest


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def check(found: Iterator[tuple[str, int]], limit: int) -> None:
    larger = {where: size for where, size in found if size > limit and where not in LARGER}
    assert not larger, f"larger than {limit}: {larger}"


def test_functions_are_short() -> None:
    sizes = ((f"{name_of(p)}:{f.name}", lines_in(f)) for p in SOURCES for f in functions(p))
    check(sizes, MAX_FUNCTION_LINES)


def test_nesting_is_shallow() -> None:
    depths = ((f"{name_of(p)}:{f.name}", nesting(f)) for p in SOURCES for f in functions(p))
    check(depths, MAX_NESTING)


def test_classes_promise_little() -> None:
    def public_methods() -> Iterator[tuple[str, int]]:
        for path in SOURCES:
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.ClassDef):
                    names = {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
                    public = [name for name in names if not name.startswith("_")]
                    yield f"{name_of(path)}:{node.name}", len(public)

    check(public_methods(), MAX_PUBLIC_METHODS)


def test_every_exception_to_the_sizes_is_still_there() -> None:
    known = {name_of(p) for p in SOURCES}
    for path in SOURCES:
        nodes = (n for n in ast.walk(tree_of(path)) if isinstance(n, ast.ClassDef))
        known |= {f"{name_of(path)}:{node.name}" for node in [*nodes, *functions(path)]}
    assert set(LARGER) <= known


def test_rooms_load_nothing_by_themselves() -> None:
    for path in SOURCES:
        if path.name == "__init__.py" and path.parent.name != "asyncrl":
            assert not list(imported(path)), f"{name_of(path)} would load a room without need"


def test_public_names() -> None:
    assert sorted(asyncrl.__all__) == asyncrl.__all__
    assert set(asyncrl.__all__) <= set(dir(asyncrl))


@pytest.mark.parametrize("name", asyncrl.__all__)
def test_public_name_resolves(name: str) -> None:
    value = getattr(asyncrl, name)
    if isinstance(value, type) or callable(value):
        assert value.__doc__


def test_function_is_not_hidden_by_the_module_of_its_name() -> None:
    code = "from asyncrl import SyncConfig, train_sync; assert callable(train_sync)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_stub_has_the_same_names_in_the_same_modules() -> None:
    stub = ast.parse((ROOT / "asyncrl/__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    assert {a.name: node.module for node in imports for a in node.names} == asyncrl._HOMES


def test_no_room_imports_the_public_names() -> None:
    """Neither does the linter see such an import, nor is it lazy any more."""
    rooms = [path for path in SOURCES if path.parent != ROOT / "asyncrl"]
    assert not [name_of(path) for path in rooms if "asyncrl" in imported(path)]


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = asyncrl.Nonsense


def loaded_by(*modules: str) -> set[str]:
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.split()}


def test_import_is_light() -> None:
    assert not HEAVY & loaded_by("asyncrl")


def test_core_modules_load_numpy_at_most() -> None:
    rooms = ("core", "actor", "learner", "metrics", "supervision")
    paths = [path for room in rooms for path in sorted((ROOT / "asyncrl" / room).glob("*.py"))]
    for name in ("distributed.py", "shared_sums.py"):  # several learners, with torch
        paths.remove(ROOT / "asyncrl" / "learner" / name)
    modules = [name_of(path).removesuffix(".py").replace("/", ".") for path in paths]
    assert not HEAVY & loaded_by(*modules)


def test_wiring_loads_sockets_but_no_torch() -> None:
    assert not (HEAVY - {"msgpack", "zmq"}) & loaded_by("asyncrl.training.asynchronous")


def test_nothing_unpickles_what_came_from_outside() -> None:
    """cloudpickle carries a parent's own factories to its own child, in supervision/ only."""
    for path in SOURCES:
        if path.parent.name != "supervision":
            roots = {name.split(".")[0] for name in imported(path)}
            assert not PICKLERS & roots, name_of(path)
        # It unpickles the metadata of its checkpoints.
        assert not [n for n in imported(path) if n.startswith("torch.distributed.checkpoint")]


def test_nothing_runs_what_came_from_outside() -> None:
    for path in SOURCES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call):
                where = f"{name_of(path)}:{node.lineno}"
                called = dotted(node.func)
                assert called not in {"eval", "exec", *UNSAFE_CALLS}, where
                assert called.split(".")[-1] not in UNPICKLING, where
                assert all(word.arg != "allow_pickle" for word in node.keywords), where
