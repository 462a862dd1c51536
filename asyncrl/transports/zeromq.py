"""Transport between processes over ZeroMQ: one ROUTER in the learner, a DEALER in each actor.

Opens nothing to other hosts: an ipc path in a private directory or, where there is no ipc, TCP
on this host's loopback. Knows no columns, and no rule of who may speak (`protocol.py`).

Nothing waits inside libzmq. An actor has credit for `window` messages; a model is sent when an
actor has asked for one, so at most one is under way and the newest is what it gets.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Self

import zmq

from asyncrl.errors import ConfigError, TransportError
from asyncrl.messages import Peer
from asyncrl.segment import SegmentSchema
from asyncrl.transports._zeromq_actor import ZmqActorLink
from asyncrl.transports._zeromq_learner import ZmqLearnerLink
from asyncrl.transports._zeromq_socket import ZmqTransportConfig
from asyncrl.wire import WireFormat

__all__ = ["ZmqActorLink", "ZmqLearnerLink", "ZmqTransport", "ZmqTransportConfig"]

_LOOPBACK = "tcp://127.0.0.1:"


class ZmqTransport:
    """The address of a learner, and what both sides must agree on.

    Send it to another process after `listen`: only then is a port known that was left open.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        schema: SegmentSchema,
        run_id: str | None = None,
        config: ZmqTransportConfig | None = None,
    ) -> None:
        """Without a `run_id` a fresh one is made."""
        if not endpoint.startswith(("ipc:///", _LOOPBACK)):
            raise ConfigError(
                f"endpoint {endpoint!r}: only ipc:///... and {_LOOPBACK}PORT are offered, because"
                " anything wider needs authentication"
            )
        self.endpoint = endpoint
        self.config = config or ZmqTransportConfig()
        self.wire = WireFormat(
            schema=schema,
            run_id=run_id or secrets.token_hex(16),
            max_message_bytes=self.config.max_message_bytes,
            max_model_bytes=self.config.max_model_bytes,
        )
        self._listens = False

    @classmethod
    def ipc(
        cls,
        directory: Path,
        *,
        schema: SegmentSchema,
        run_id: str | None = None,
        config: ZmqTransportConfig | None = None,
    ) -> Self:
        """Return the private default: a socket file in a directory of the user's own (0700)."""
        if not zmq.has("ipc"):
            return cls.loopback(schema=schema, run_id=run_id, config=config)
        endpoint = f"ipc://{directory.absolute()}/learner"
        return cls(endpoint, schema=schema, run_id=run_id, config=config)

    @classmethod
    def loopback(
        cls,
        port: int = 0,
        *,
        schema: SegmentSchema,
        run_id: str | None = None,
        config: ZmqTransportConfig | None = None,
    ) -> Self:
        """Return TCP on this host only; every user of the host can connect. Port 0: any."""
        return cls(f"{_LOOPBACK}{port or '*'}", schema=schema, run_id=run_id, config=config)

    @property
    def run_id(self) -> str:
        """The run whose messages count."""
        return self.wire.run_id

    def listen(self) -> ZmqLearnerLink:
        """Open the learner's end, and replace a port left open by the real one. Called once."""
        if self._listens:
            raise TransportError(f"already listening on {self.endpoint}")
        link = ZmqLearnerLink(self.endpoint, self.wire, self.config)
        self.endpoint = link.endpoint
        self._listens = True
        return link

    def connect(self, peer: Peer) -> ZmqActorLink:
        """Open an actor's end."""
        if self.endpoint.endswith("*"):
            raise TransportError("connect comes after listen: the port is not known before")
        return ZmqActorLink(self.endpoint, self.wire, self.config, peer)
