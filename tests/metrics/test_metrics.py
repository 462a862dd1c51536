"""The list of metrics and the look-up in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import asyncrl
from asyncrl.metrics.metrics import METRICS, describe


@pytest.mark.behaviour(number=54)
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("fps", "fps"),
        ("actor/12/env_steps", "actor/<id>/env_steps"),
        ("actor/0/env_steps_per_s", "actor/<id>/env_steps_per_s"),
        ("actor/0/exploration_rate", "actor/<id>/<name>"),
        ("agent/q_mean", "agent/<name>"),
        *((name, "") for name in ("unheard_of", "agent/a/b", "actor/0", "xfps")),
    ],
)
def test_name_is_described_by_its_most_exact_line(name: str, line: str) -> None:
    assert describe(name) is METRICS.get(line)


def test_every_reason_why_a_link_does_not_accept_is_listed() -> None:
    root = Path(asyncrl.__file__).parent
    sources = sorted((root / "transport").glob("*.py"))
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    forms = (r'counters\["(\w+)"\]', r'\.note\(\s*"(\w+)"', r'yield "(\w+)"')
    reasons = {reason for form in forms for reason in re.findall(form, text)}
    assert {"stale", "malformed", "flood", "unknown"} <= reasons, "each form is found"
    listed = {name.removeprefix("link/") for name in METRICS if name.startswith("link/")}
    assert reasons == listed
