"""Stage `transport`: our protocol and bare sockets, between two processes."""

from __future__ import annotations

import pytest

from asyncrl.bench.stage_transport import CASES, Case, rows_schema, transport_stage
from tests.bench.workloads import tiny


@pytest.mark.processes
@pytest.mark.parametrize("case", CASES)
def test_value_and_limit_are_measured(case: Case) -> None:
    stage = transport_stage(tiny(), case)
    for measure in (stage.value, stage.limit):
        (rate,) = measure()
        assert 100 < rate < 1e12
    stage.close()


def test_bytes_of_a_transition_are_those_of_its_share_of_a_segment() -> None:
    (quantity,) = transport_stage(tiny(segment_length=8), "84x84 frames").quantities
    row_bytes = 84 * 84 + 8 + 4 + 1 + 4
    assert quantity.unit_bytes == 9 * row_bytes // 8
    assert (quantity.unit, quantity.env) == ("transitions/s", "84x84 frames")


def test_messages_stay_smaller_than_what_a_learner_takes() -> None:
    (quantity,) = transport_stage(tiny(segments_per_message=10_000), "84x84 frames").quantities
    size = quantity.settings["segments_per_message"] * rows_schema("84x84 frames", 8).segment_bytes
    assert size <= 16 << 20
