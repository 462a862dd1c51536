"""Each row of the fault model has a test that carries its number."""

from __future__ import annotations

import pytest

from tests.support.fault_model import FAULT_MODEL, proofs


@pytest.mark.parametrize("row", FAULT_MODEL)
def test_row_has_a_proof(row: str) -> None:
    assert row in proofs(), f"no test carries {row}: {FAULT_MODEL[row]}"


def test_every_mark_is_a_row() -> None:
    unknown = {row: places for row, places in proofs().items() if row not in FAULT_MODEL}
    assert not unknown
