from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncrl.core.errors import ConfigError, WireError
from asyncrl.core.messages import (
    ACTOR_PHASES,
    ActorReport,
    EvaluationReport,
    Experience,
    Hello,
    ModelInfo,
    Peer,
)
from asyncrl.core.segment import END, ColumnSpec, SegmentSchema
from asyncrl.transport.protocol import (
    _MOST_PEERS,
    Ack,
    Delivery,
    EnvDelivery,
    Finish,
    Refusal,
    Request,
)
from asyncrl.transport.wire import (
    DTYPES,
    MAX_COUNT,
    MAX_EPISODES,
    MAX_HEADER_BYTES,
    PROTOCOL,
    Fields,
    WireFormat,
    WireMessage,
)
from tests.support.sample_messages import (
    SCHEMA,
    make_evaluation,
    make_experience,
    make_model,
    make_report,
    same,
)

WIRE = WireFormat(schema=SCHEMA, run_id="a run", max_message_bytes=1 << 20, max_model_bytes=1 << 20)

TIME = ColumnSpec("time", "datetime64[s]")

shares = st.dictionaries(st.sampled_from(ACTOR_PHASES), st.floats(0, 1e9))
counts = st.integers(0, MAX_COUNT)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.dictionaries(names, st.floats(allow_nan=False), max_size=4)
topics = st.sampled_from(["act", "evaluate"])
subjects = st.sampled_from(["act", "evaluate", "env"])
peers = st.builds(Peer, actor_id=st.integers(-(2**63), 2**63 - 1), incarnation=counts)


@st.composite
def experiences(draw: st.DrawFn) -> Experience:
    n = draw(st.integers(1, 4))
    columns = {
        c.name: draw(hnp.arrays(c.dtype, (n, SCHEMA.rows, *c.shape))) for c in SCHEMA.columns
    }
    rows = draw(hnp.arrays(np.int64, n, elements=st.integers(1, SCHEMA.rows)))
    filled = np.arange(SCHEMA.rows) < rows[:, None]
    transitions = int((filled & (columns["flags"] < END))[:, SCHEMA.sampled].sum())
    produced = draw(st.integers(transitions, MAX_COUNT))
    return Experience(
        peer=draw(peers),
        seq=draw(st.integers(1, 2**63 - 1)),
        columns=columns,
        rows=rows,
        transitions=transitions,
        produced=produced,
        env_steps=draw(counts),
        model_version=draw(st.integers(-1, 2**63 - 1)),
    )


@st.composite
def reports(draw: st.DrawFn) -> ActorReport:
    returns = draw(st.lists(st.floats(allow_nan=False), max_size=5))
    return ActorReport(
        peer=draw(peers),
        produced=draw(counts),
        env_steps=draw(counts),
        episodes=draw(counts),
        shares=draw(shares),
        episode_returns=np.array(returns, np.float64),
        episode_lengths=np.arange(len(returns)),
        policy=draw(numbers),
        final=draw(st.booleans()),
        seq=draw(st.integers(1, 2**63 - 1)),
    )


arrays = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
models = st.builds(
    ModelInfo, version=counts, params=st.dictionaries(names, arrays, max_size=4), env_steps=counts
)
messages: st.SearchStrategy[WireMessage] = st.one_of(
    experiences(),
    reports(),
    st.builds(Hello, peer=peers, schema_hash=names, software=names),
    st.builds(
        EvaluationReport,
        peer=peers,
        model_version=counts,
        score=st.floats(allow_nan=False),
        record=numbers,
        seq=st.integers(1, 2**63 - 1),
    ),
    st.builds(Request, peers, subjects, st.integers(-1, 2**63 - 1)),
    st.builds(Delivery, topics, models),
    st.builds(EnvDelivery, st.integers(1, 2**63 - 1), names),
    st.builds(Ack, counts, counts, counts),
    st.builds(Refusal, names),
    st.just(Finish()),
)


def frames_of(message: WireMessage) -> list[bytes]:
    return [bytes(frame) for frame in WIRE.encode(message)]


def header_of(*fields: Any) -> bytes:
    packed: bytes = msgpack.packb([PROTOCOL, *fields])
    return packed


@given(messages)
def test_what_is_decoded_is_what_was_encoded(message: WireMessage) -> None:
    assert same(WIRE.decode(frames_of(message)), message)


def test_experience_is_neither_copied_on_the_way_out_nor_on_the_way_in() -> None:
    message = make_experience(1)
    frames = WIRE.encode(message)
    decoded = WIRE.decode(frames)
    assert isinstance(decoded, Experience)
    for name, column in message.columns.items():
        assert np.shares_memory(column, decoded.columns[name])
        assert not decoded.columns[name].flags.writeable


def test_parameters_need_not_be_contiguous() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    model = ModelInfo(version=make_model(1).version, params={"w": array})
    decoded = WIRE.decode(frames_of(Delivery("act", model)))
    assert isinstance(decoded, Delivery)
    np.testing.assert_array_equal(decoded.model.params["w"], array)


@given(messages, st.data())
def test_changed_frames_are_refused(message: WireMessage, data: st.DataObject) -> None:
    frames = frames_of(message)
    at = data.draw(st.integers(0, len(frames) - 1))
    other = data.draw(
        st.sampled_from([[], [frames[at]] * 2, [frames[at][:-1] or b"x"], [frames[at] + b"\0"]])
    )
    with pytest.raises(WireError):
        WIRE.decode([*frames[:at], *other, *frames[at + 1 :]])


def _delivery(layout: Any, block: bytes = b"") -> list[bytes]:
    kind = msgpack.unpackb(frames_of(Delivery("act", make_model(1)))[0])[1]
    return [header_of(kind, WIRE.run_id, "act", 1, 0, 2, layout), block]


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "without frames"),
        ([b"\x90" * 300_000], "header of 300000 bytes"),
        ([b"\xdd\xff\xff\xff\xff"], "not msgpack"),
        ([b"\x91" * 4000], "not msgpack"),
        ([b"\x91" * 5000], "4346 values"),
        ([msgpack.packb({"kind": 1})], "not a list"),
        ([msgpack.packb([msgpack.ExtType(4, b"x" * 9)])], "not msgpack"),
        ([msgpack.packb([msgpack.Timestamp(0)])], "not msgpack"),
        ([header_of(True, "a run")], "kind"),
        ([header_of(99, "a run")], "kind is 99"),
        (_delivery([["w", "object", 1]], b"x"), "parameter"),
        (_delivery([["w", "float32", -1]]), "impossible shape"),
        (_delivery([["w", "float32", True]], b"abcd"), "impossible shape"),
        (_delivery([["w", "float32", 2**19]]), "exceeds the size limit"),
        (_delivery([["w", "float32", 2**19, 2**19, 0]]), "exceeds the size limit"),
        (_delivery([["w", "float32", *[1] * 40]], b"abcd"), "parameter"),
        (_delivery([["w", "float32", 2]], b"abcd"), "bytes"),
        (frames_of(EnvDelivery(0, "{}")), "number is 0"),
    ],
)
def test_what_could_do_harm_is_refused(frames: list[bytes], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        WIRE.decode(frames)


def test_more_segments_than_fit_are_refused_before_anything_is_built() -> None:
    small = WireFormat(schema=SCHEMA, run_id="a run", max_message_bytes=2 * SCHEMA.segment_bytes)
    WIRE.decode(small.encode(make_experience(1, segments=2)))
    with pytest.raises(WireError, match="3 segments, expected 1 to 2"):
        small.encode(make_experience(1, segments=3))
    with pytest.raises(WireError, match="segments is 3"):
        small.decode(frames_of(make_experience(1, segments=3)))


@pytest.mark.parametrize("limit_bytes", [1 << 16, 64 << 20])
def test_of_more_episodes_than_a_report_may_list_it_lists_the_newest(limit_bytes: int) -> None:
    wire = WireFormat(schema=SCHEMA, run_id="a run", max_message_bytes=limit_bytes)
    ended = np.arange(MAX_EPISODES + 1)
    frames = wire.encode(
        replace(
            make_report(),
            episodes=len(ended),
            episode_returns=ended.astype(np.float64),
            episode_lengths=ended,
        )
    )
    assert all(memoryview(frame).nbytes <= limit_bytes for frame in frames), "else it is cut off"
    report = wire.decode(frames)
    assert isinstance(report, ActorReport)
    assert report.episodes == len(ended), "of all"
    fit = min(MAX_EPISODES, limit_bytes // 8)
    np.testing.assert_array_equal(report.episode_returns, ended[-fit:])
    np.testing.assert_array_equal(report.episode_lengths, ended[-fit:])


@pytest.mark.parametrize("rows", [0, -1, SCHEMA.rows + 1, SCHEMA.length - 1])
def test_row_counts_outside_a_segment_or_of_other_transitions_are_refused(rows: int) -> None:
    frames = frames_of(make_experience(1))
    frames[1] = np.full(2, rows, np.int64).tobytes()
    with pytest.raises(WireError, match=r"row counts|6 transitions, its header says 8"):
        WIRE.decode(frames)


@pytest.mark.fault("F22")
@pytest.mark.parametrize(
    ("message", "name"),
    [
        *((make_experience(1), name) for name in ("produced", "env_steps")),
        *((make_report(), name) for name in ("produced", "env_steps", "episodes")),
    ],
)
def test_no_one_has_done_more_than_could_be_added_up(message: WireMessage, name: str) -> None:
    """Else one actor that lies could bring the total count beyond what a model message can hold."""
    most = replace(message, **{name: MAX_COUNT})  # type: ignore[type-var,arg-type]
    assert same(WIRE.decode(frames_of(most)), most)
    more = replace(message, **{name: MAX_COUNT + 1})  # type: ignore[type-var,arg-type]
    with pytest.raises(WireError, match=f"{name} is"):
        WIRE.decode(frames_of(more))
    model = replace(make_model(1), env_steps=_MOST_PEERS * MAX_COUNT)
    assert same(WIRE.decode(frames_of(Delivery("act", model))), Delivery("act", model))


@pytest.mark.fault("F22")
@pytest.mark.parametrize(
    "shares",
    [
        {"loafing": 1.0},
        *({"env": seconds} for seconds in (-1.0, float("nan"), float("inf"), 1e300)),
    ],
)
def test_time_is_spent_in_a_known_phase_and_does_not_spoil_the_sum(
    shares: dict[str, float],
) -> None:
    """They are added up for the whole run, by name."""
    with pytest.raises(WireError, match="shares"):
        WIRE.decode(frames_of(replace(make_report(), shares=shares)))


def _with_column(name: str, array: np.ndarray) -> Experience:
    message = make_experience(1)
    return replace(message, columns={**message.columns, name: array})


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("obs", np.zeros((2, 5, 2, 3), np.float64)),
        ("obs", np.zeros((2, 5, 3, 2), np.float32)),
        ("obs", np.zeros((2, 5, 3, 2), np.float32).swapaxes(2, 3)),
        ("other", np.zeros((2, 5), np.float32)),
    ],
)
def test_columns_that_do_not_fit_the_schema_are_not_sent(name: str, array: np.ndarray) -> None:
    with pytest.raises(WireError, match="column"):
        WIRE.encode(_with_column(name, array))


@pytest.mark.parametrize(
    "message",
    [
        Delivery("act", ModelInfo(version=make_model(1).version, params={"w": np.array([None])})),
        Delivery("act", ModelInfo(version=make_model(1).version, params={"w": "text"})),
        Delivery("act", ModelInfo(version=make_model(1).version, params={"w": np.zeros(1 << 18)})),
        Ack(2**70),
        EnvDelivery(1, "x" * MAX_HEADER_BYTES),
        Refusal("\ud800"),
        replace(make_report(), shares={"env": None}),
        replace(make_report(), episode_returns=np.ones(1), episode_lengths=np.ones(0)),
        replace(make_evaluation(), record={str(i) * 60: 0.0 for i in range(10_000)}),
    ],
)  # type: ignore[misc]
def test_unencodable_values_raise_a_wire_error(message: WireMessage) -> None:
    with pytest.raises(WireError):
        WIRE.encode(message)


@pytest.mark.parametrize(
    ("settings_", "reason"),
    [
        ({"schema": SegmentSchema(columns=(TIME,), length=1, lookahead=0)}, "dtype"),
        ({"max_message_bytes": SCHEMA.segment_bytes - 1}, "max_message_bytes"),
        ({"run_id": ""}, "run id"),
    ],
)
def test_what_cannot_work_is_refused_at_once(settings_: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        WireFormat(**{"schema": SCHEMA, "run_id": "a run"} | settings_)


@pytest.mark.parametrize(
    ("take", "value"),
    [
        (lambda f: f.integer("x"), True),
        (lambda f: f.integer("x", 1, 5), 6),
        (lambda f: f.number("x"), False),
        (lambda f: f.text("x"), b"bytes"),
        (lambda f: f.flag("x"), 1),
        (lambda f: f.subject("act"), "env"),
        (lambda f: f.numbers("x"), {b"a": 1.0}),
        (lambda f: f.numbers("x"), {"a": True}),
        (lambda f: f.layout(100), [["w", "float32", 5, 6]]),
        (lambda f: f.layout(100), [[1, "float32", 1]]),
    ],
)
def test_a_field_of_another_type_or_range_is_refused(take: Any, value: Any) -> None:
    fields = Fields([value])
    fields.kind = "Greeting"
    with pytest.raises(WireError, match="Greeting"):
        take(fields)


def test_missing_and_surplus_fields_are_refused() -> None:
    with pytest.raises(WireError, match="x is missing"):
        Fields([]).integer("x")
    with pytest.raises(WireError, match="too many fields"):
        Fields([None]).end()
