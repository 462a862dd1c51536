"""How old is the model that acts, when models get lost on their way?

Three in ten models that the learner sends are thrown away, for a while, in one run; in another all
of them, from a moment on, and the breached limit on their age must be reported. Compared
are the versions with which each part of the experience was acted, when it is stored, and those that
were published until then.
"""

from __future__ import annotations

import random
import re
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from asyncrl.core.messages import ModelInfo, Peer
from asyncrl.core.transport import Topic
from asyncrl.training.run_config import RunConfig
from asyncrl.transport.zeromq import ZmqLearnerLink
from benchmarks.chaos.audit import Audit
from benchmarks.chaos.figures import percentile
from benchmarks.chaos.finding import Finding, Size
from benchmarks.chaos.stage import DEADLINE_S, Stage

_SHARE = 0.3
_MOST_BEHIND = 2
_LIMIT_S = 2.0
_WARNING = re.compile(
    r"experience of actor (?P<actor>\d+) comes from a model that is (?P<lag_s>[\d.]+) s"
)
_RAISED_S = 1.0


@dataclass(slots=True)
class Losses:
    """Throws away a share of the models that learners in this process send.

    No socket loses a message without breaking its connection, so the learner's link is made to.
    """

    share: float
    sent: int = 0
    lost: int = 0
    published_at: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Throw them away in this block; note also what is published."""
        draw = random.Random(0)  # noqa: S311  # no secret
        answer, publish = ZmqLearnerLink._answer, ZmqLearnerLink.publish  # noqa: SLF001

        def answer_or_lose(link: ZmqLearnerLink, peer: Peer, topic: Topic, have: int) -> None:
            newest = link._models.get(topic, (have, []))[0]  # noqa: SLF001
            if newest <= have:
                return
            self.sent += 1
            if draw.random() < self.share:
                self.lost += 1
                del link._requests[peer, topic]  # noqa: SLF001  # as if it were on its way
                link._table.delivers(peer, topic)  # noqa: SLF001
            else:
                answer(link, peer, topic, have)

        def note_and_publish(link: ZmqLearnerLink, model: ModelInfo, topic: Topic) -> None:
            self.published_at.append(time.monotonic())
            self.versions.append(int(model.version))
            publish(link, model, topic)

        with (
            patch.object(ZmqLearnerLink, "_answer", answer_or_lose),
            patch.object(ZmqLearnerLink, "publish", note_and_publish),
        ):
            yield


def versions_behind(losses: Losses, audit: Audit) -> list[int]:
    """Return for each part that was stored how many newer models had been published by then."""
    behind = []
    for at, version in zip(audit.pushed_at, audit.versions, strict=True):
        published = bisect_right(losses.published_at, at)
        own = bisect_right(losses.versions, version)
        behind.append(max(0, published - own))
    return behind


def measure(size: Size, directory: Path) -> list[Finding]:
    """Lose models in two runs."""
    seconds = 5.0 if size == "small" else 300.0
    own, other = directory / "some", directory / "all"
    own.mkdir()
    other.mkdir()
    return [*_some_lost(seconds, own), _limit(other)]


def _some_lost(seconds: float, directory: Path) -> list[Finding]:
    losses = Losses(_SHARE)
    stage = Stage(directory)
    stage.audit.keeps_times = True

    def script(stage: Stage) -> Iterator[None]:
        yield from stage.begins()
        yield from stage.for_s(seconds)

    with losses.open():
        stage.play(script)
    behind = versions_behind(losses, stage.audit)
    young = float(np.mean([n <= _MOST_BEHIND for n in behind]))
    return [
        Finding(
            target=23,
            what="transitions without a model version",
            measured=f"{stage.audit.unmodelled} of {stage.audit.total():,}",
            promised="0",
            passed=stage.audit.unmodelled == 0,
        ),
        Finding(
            target=23,
            what=f"{losses.lost} of {losses.sent} models lost on their way",
            measured=f"{young:.1%} of {len(behind)} messages acted with one of the "
            f"{_MOST_BEHIND + 1} newest models; p99 {percentile(behind, 99):.0f} behind, at most "
            f"{max(behind)} of {len(losses.versions)}",
            promised=f">= 99.9 % <= {_MOST_BEHIND} versions behind",
            passed=young >= 0.999,
            timed=True,
            numbers={"young": young, "most_behind": max(behind), "lost": losses.lost},
        ),
        stage.balance(5, "models lost on their way"),
    ]


def _limit(directory: Path) -> Finding:
    """Lose all models from a moment on; return how soon the old model is reported."""
    losses = Losses(0.0)
    stage = Stage(directory, configure=_limited)

    def reported() -> dict[str, float]:
        """Return by how much each model exceeded the limit when that was reported."""
        found = (_WARNING.search(text) for _, text in stage.notices.since(0.0, "max_lag_s"))
        return {each["actor"]: float(each["lag_s"]) - _LIMIT_S for each in found if each}

    def script(stage: Stage) -> Iterator[None]:
        yield from stage.begins()
        yield from stage.for_s(1.0)
        losses.share = 1.0
        yield from stage.until(lambda: len(reported()) == stage.config.actors, DEADLINE_S, "words")

    with losses.open():
        stage.play(script)
    late_s = max(reported().values())
    return Finding(
        target=23,
        what=f"a limit of {_LIMIT_S:g} s on the age of models is passed",
        measured=f"after {late_s:.2f} s, of {len(reported())} of {stage.config.actors} actors",
        promised=f"<= {_RAISED_S:g} s, of all",
        passed=late_s <= _RAISED_S,
        timed=True,
        numbers={"late_s": late_s},
    )


def _limited(config: RunConfig) -> RunConfig:
    return replace(config, trainer=replace(config.trainer, max_lag_s=_LIMIT_S))
