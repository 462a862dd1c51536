"""What does the protocol cost? Experience between two processes, against a bare PUSH/PULL.

Keeps what `asyncrl bench transport` measures beside the other results.

    python -m benchmarks.bench_transport --segments 64
"""

from __future__ import annotations

from asyncrl.bench.stage_transport import TransportStage
from asyncrl.bench.workload import Workload
from benchmarks.common import compare, in_turns, make_parser, positive, provenance, save, show


def main() -> None:
    """Measure both in turns."""
    parser = make_parser(__doc__)
    parser.add_argument("--segments", type=positive, default=64, help="of 33 rows, in one message")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    args = parser.parse_args()
    origin = provenance()
    workload = Workload(segments_per_message=args.segments, seconds=args.seconds)
    stage = TransportStage(workload, "CartPole-size rows")
    (quantity,) = stage.quantities
    rounds = in_turns(
        {"asyncrl": lambda: stage.measure_value()[0], "bare": lambda: stage.measure_limit()[0]},
        args.repeats,
    )
    transitions = args.segments * workload.segment_length
    what = f"Messages of {transitions:,} transitions / bare PUSH and PULL"
    comparison = compare(rounds, "asyncrl", "bare", what=what, unit=quantity.unit)
    path = save(
        args.results,
        f"transport_{args.segments}",
        question=__doc__,
        settings={**quantity.settings, "seconds": args.seconds},
        comparisons=[comparison],
        origin=origin,
        details={
            "transitions_per_s": rounds,
            "bytes_per_s": (comparison.ours or 0.0) * quantity.unit_bytes,
        },
    )
    show(path)


if __name__ == "__main__":
    main()
