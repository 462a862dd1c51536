"""A function in a child returns its answer or its end is reported; the parent is unchanged."""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from asyncrl.core.errors import ActorFailed, ConfigError
from asyncrl.fleet import in_child
from asyncrl.fleet.in_child import run_in_child
from benchmarks.faults_in_process import PROCESS_FAULTS
from tests.contracts.test_launcher import DEADLINE_S
from tests.support.leftovers import children

pytestmark = pytest.mark.processes


def call(body: Callable[[], Any], **more: Any) -> Any:
    return run_in_child(body, what="building the environment", **{"timeout_s": DEADLINE_S, **more})


def refuses() -> NoReturn:
    error = ConfigError("no such game;\nname another")
    error.add_note("asyncrl: in making environment 'x'")
    raise error


def notes() -> NoReturn:
    error = KeyError("lid")
    error.add_note("asyncrl: in making environment 'x'")
    raise error


def test_answer_is_what_json_can_hold() -> None:
    answer = {"pid": 3, "bound": math.inf, "name": "ü\udcff", "rows": [[1.5, None]]}
    assert call(lambda: answer) == answer


def does(way: str) -> str:
    PROCESS_FAULTS[way]()
    return "done"


@pytest.mark.parametrize(
    "ways",
    [
        ("thread", "chdir", "ignore-signals", "umask", "spawn-children", "no-output"),
        ("close-files",),
    ],
)
def test_what_it_does_to_its_process_does_no_harm(ways: tuple[str, ...]) -> None:
    before = Path.cwd(), signal.getsignal(signal.SIGTERM), threading.active_count()
    assert call(lambda: [does(way) for way in ways]) == ["done"] * len(ways)
    assert (Path.cwd(), signal.getsignal(signal.SIGTERM), threading.active_count()) == before
    assert not children(recursive=True)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("exit-0", "exited with code 0 before it was done. Look for os._exit in the env"),
        ("abort", r"was killed by SIGABRT \(a crash in native code\)"),
        ("sys-exit", "failed: SystemExit: 0"),
    ],
)
def test_end_without_an_answer_is_reported(way: str, words: str) -> None:
    with pytest.raises(ActorFailed, match=f"^building the environment failed: its process {words}"):
        call(partial(does, way))


def test_exception_is_reported_with_its_traceback_and_notes() -> None:
    words = (
        r"^building .* failed: KeyError: 'lid' \(in making environment 'x'; at .*:\d+ in notes\)"
    )
    with pytest.raises(ActorFailed, match=words) as e:
        call(notes)
    assert "in notes\n" in str(e.value).partition("\n\n")[2]


def test_refusal_of_ours_stays_one() -> None:
    with pytest.raises(ConfigError) as caught:
        call(refuses)
    assert str(caught.value) == "no such game;\nname another"
    assert "in refuses\n" in caught.value.__notes__[0]


def test_hang_is_reported_with_its_last_output_and_stack(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_child, "_FIRST_REPORT_S", 0.05)
    caplog.set_level(logging.INFO, "asyncrl.fleet.in_child")
    with pytest.raises(
        ActorFailed, match=r"took more than 2 s.* raise some\.setting; else"
    ) as caught:
        call(partial(does, "sleep"), timeout_s=2.0, timeout_setting="some.setting")
    assert "in does" in str(caught.value)
    (first, *_) = caplog.messages
    assert first.endswith("0 s so far, timeout 2 s")


def test_answer_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_child, "_MOST_ANSWER_BYTES", 100)
    with pytest.raises(ActorFailed, match="its result has 1014 bytes, more than the limit of 100"):
        call(lambda: "x" * 1000)
