"""How an algorithm's file begins: with its papers, its equations, and what differs on purpose."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import asyncrl.agents

FOLDER = Path(asyncrl.agents.__file__).parent


def configures(path: Path) -> bool:
    classes = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))
    return any(node.name.endswith("Config") for node in classes)


ALGORITHMS = sorted(path for path in FOLDER.glob("[!_]*.py") if configures(path))


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_file_opens_with_papers_equations_and_deviations(path: Path) -> None:
    opening = ast.get_docstring(ast.parse(path.read_text())) or ""
    paper = opening.find("https://")
    equation = re.search(r"^ +[A-Za-z][\w' ,()|]* += \S", opening, re.MULTILINE)
    deviations = opening.find("on purpose:\n")
    assert paper > 0, "no address of a paper"
    assert equation, "no equation"
    assert deviations > 0, "nothing on what differs from the paper"
    assert paper < deviations
    assert equation.start() < deviations
    papers = len(re.findall(r"(?:et al\.|\w+) \(?(?:19\d|20[0-3])\d[ab]?\)?[,:]", opening))
    assert len(re.findall(r"https://", opening)) >= papers, "a paper without its address"
