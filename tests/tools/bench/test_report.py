"""The table that people read."""

from __future__ import annotations

from asyncrl.tools.bench.report import render
from tests.tools.bench.sample_results import a_result


def test_one_line_for_each_measurement_and_columns_aligned() -> None:
    results = [
        a_result((95_000.0, 100_000.0), (90_000.0, 100_000.0), stage="env"),
        a_result((1_250.5, 2_000.0), stage="learner", unit="opt steps/s", limit_is="a batch"),
    ]
    assert render(results).splitlines() == [
        "a processor, 4 of 8 cores, 31.5 GiB, no GPU, Python 3.11, asyncrl 1, torch 2, numpy 3, "
        "gymnasium 4, pyzmq 5",
        "actors 2",
        "medians of 1..2 rounds of value and limit in turns, 1 s each; ratio is value / limit",
        "",
        "stage    on            value    limit  unit           ratio  min..max  limit is",
        "-------  -----------  ------  -------  -------------  -----  --------  ---------",
        "env      CartPole-v1  92,500  100,000  agent steps/s  92.5%  90%..95%  bare loop",
        "learner  CartPole-v1   1,250    2,000  opt steps/s    62.5%  63%..63%  a batch",
    ]
