"""One actor and a learner in one process: messages pass by reference, and credit never ends.

What every transport promises is tested with the real one; this is for tests of what uses it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from asyncrl.core.errors import TransportClosed
from asyncrl.core.messages import EnvChange, Experience, Hello, Message, ModelInfo, Peer, Report
from asyncrl.core.transport import Topic


class LocalTransport:
    """Both ends are this object's, which `changed` guards."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inbox: list[Message] = []
        self.models: dict[Topic, ModelInfo] = {}
        self.env_change = EnvChange()
        self.acknowledged = self.sent = 0
        self.welcomed = self.woken = self.finish = False

    def wait(self, condition: Callable[[], object], timeout_s: float) -> bool:
        with self.changed:
            return bool(self.changed.wait_for(condition, timeout_s))

    def change(self, **values: object) -> None:
        with self.changed:
            for name, value in values.items():
                setattr(self, name, value)
            self.changed.notify_all()


class LocalLearnerLink:
    """The learner's end."""

    counters: Mapping[str, int] = {}

    def __init__(self, transport: LocalTransport) -> None:
        self.address = transport
        self._closed = False

    def poll(self, timeout_s: float, waited: Callable[[], object] = lambda: None) -> list[Message]:
        if self._closed:
            raise TransportClosed("the learner's link is closed")
        shared = self.address
        if timeout_s > 0:
            shared.wait(lambda: shared.inbox or shared.woken, timeout_s)
            waited()
        with shared.changed:
            messages = shared.inbox
            shared.inbox = []
        shared.change(woken=False, welcomed=shared.welcomed or bool(messages))
        return messages

    def acknowledge(self, peer: Peer, seq: int, granted: int = 0) -> None:
        self.address.change(acknowledged=seq)

    def publish(self, model: ModelInfo, topic: Topic) -> None:
        copies = {name: array.copy() for name, array in model.params.items()}
        models = {**self.address.models, topic: replace(model, params=copies)}
        self.address.change(models=models)

    newest_change = EnvChange()

    def change_env(self, change: EnvChange) -> None:
        self.newest_change = change
        self.address.change(env_change=change)

    def wake(self) -> None:
        self.address.change(woken=True)

    def stop_actors(self) -> None:
        self.address.change(finish=True)

    def close(self) -> None:
        self._closed = True


class LocalActorLink:
    """The actor's end."""

    def __init__(self, transport: LocalTransport) -> None:
        self._shared = transport

    def hello(self, message: Hello, timeout_s: float = 0.0) -> bool:
        if not self._shared.welcomed:
            self._put(message)
        return self._shared.wait(lambda: self._shared.welcomed, timeout_s)

    def may_begin(self, seq: int, timeout_s: float = 0.0) -> bool:
        return True

    def send(self, message: Experience | Report, timeout_s: float) -> bool:
        if isinstance(message, Experience):
            self._shared.sent = message.seq
        self._put(message)
        return True

    def latest_model(
        self, topic: Topic, newer_than: int, timeout_s: float = 0.0
    ) -> ModelInfo | None:
        def newest() -> ModelInfo | None:
            model = self._shared.models.get(topic)
            return model if model and model.version > newer_than else None

        self._shared.wait(newest, timeout_s)
        return newest()

    def env_change(self, newer_than: int) -> EnvChange | None:
        change = self._shared.env_change
        return change if change.number > newer_than else None

    def stopping(self) -> bool:
        return self._shared.finish

    def drain(self, timeout_s: float) -> bool:
        return self._shared.wait(lambda: self._shared.acknowledged >= self._shared.sent, timeout_s)

    def close(self) -> None: ...

    def _put(self, message: Message) -> None:
        self._shared.change(inbox=[*self._shared.inbox, message])
