"""Asynchronous actor-learner training of PyTorch agents on Gymnasium environments.

The public names, each loaded when it is first used: `import asyncrl` itself loads neither torch
nor zmq nor gymnasium. `__init__.pyi` lists them, once for type checkers, editors and what is here.
Everything else is imported from where it lives, for instance
`from asyncrl.agents.dqn import DQNConfig`.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path

__version__ = "0.1.0"


@cache
def _homes() -> dict[str, str]:
    """Return the module in which each public name lives."""
    listed = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    lines = re.findall(r"^from (\S+) import [(\s]*(\w+) as \2\b", listed, re.MULTILINE)
    return {name: module for module, name in lines}


def __getattr__(name: str) -> object:
    """Load the home of a public name and keep the name here (PEP 562)."""
    if name == "__all__":
        return sorted(_homes())
    if name not in _homes():
        raise AttributeError(f"module 'asyncrl' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_homes()[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the names that are loaded and those that are not yet."""
    return sorted({*globals(), *_homes()})
