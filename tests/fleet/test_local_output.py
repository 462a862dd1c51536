"""What an actor prints: whole lines; too many or repeated ones are counted, the last ones kept."""

from __future__ import annotations

import os
import select

from asyncrl.fleet.local_output import Lines, Outputs
from tests.fleet.test_actor_manager import Clock


def test_lines_come_whole_and_without_what_moves_the_cursor() -> None:
    lines = Lines(Clock())
    assert lines.feed(b"be") == []
    shown = lines.feed(b"fore\n\n10 %\r20 %\r\n\x1b[2J\x1b[31mred\x1b[0m\n")
    assert shown == ["before", "10 %", "20 %", "red"]
    first, second = "µ".encode()[:1], "µ".encode()[1:]
    assert lines.feed(first) == []
    assert lines.feed(second + b"\xff\nrest") == ["µ\\xff"]
    assert lines.end(failed=False) == ["rest"]


def test_lines_without_an_end_are_cut() -> None:
    lines = Lines(Clock())
    assert lines.feed(b"x" * 100_000) == ["x" * 2000 + "..."]
    assert lines.feed(b"x") == []


def test_repeated_lines_are_counted_until_the_minute_is_over() -> None:
    clock = Clock()
    lines = Lines(clock)
    assert lines.feed(b"same\n" * 50_000 + b"other\n") == ["same"] * 5
    assert lines.tick() == []
    clock.now += 60
    assert lines.feed(b"same\n") == ["[49,996 more lines within a minute]", "same"]
    clock.now += 60
    assert lines.tick() == []


def test_of_too_many_lines_the_first_are_shown_and_the_last_if_the_actor_fails() -> None:
    for failed in (False, True):
        lines = Lines(Clock())
        text = "".join(f"{i}\n" for i in range(3000)).encode()
        assert lines.feed(text + b"why it fails") == [str(i) for i in range(100)]
        last = [*map(str, range(2981, 3000)), "why it fails"]
        expected = ["[2,901 more lines, the last ones:]", *last]
        assert lines.end(failed=failed) == (expected if failed else ["[2,901 more lines]"])


def test_pipes_are_read_until_their_actors_end_and_rest_in_between() -> None:
    clock, poll = Clock(), select.poll()
    outputs = Outputs(poll, clock)
    loud, quiet = outputs.open("loud"), outputs.open("quiet")

    def look() -> list[tuple[str, str]]:
        return list(outputs.look(dict(poll.poll(0))))

    os.write(loud, b"first\n")
    assert look() == [("loud", "first")]
    os.write(loud, b"second\n")
    os.close(quiet)
    assert look() == []
    assert outputs.wait_s > 0
    clock.now += outputs.wait_s
    assert look() == [], "now they are polled again"
    assert look() == [("loud", "second")]
    assert len(outputs.readers()) == 1, "one has closed its end"
    outputs.hide("loud", "what is never read")
    os.write(loud, b"third")
    assert outputs.end("loud", failed=False) == ["third", "[1 more lines]"]
    assert outputs.end("quiet", failed=True) == []
    os.close(loud)
    clock.now += 1
    assert look() == []
