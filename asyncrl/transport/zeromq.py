"""Transport between processes over ZeroMQ: one ROUTER in the learner, a DEALER in each actor.

Opens nothing to other hosts by default: it uses an ipc path in a private directory or, without ipc,
TCP on this host's loopback. What other hosts can reach is encrypted, and only accepts peers with a
key (`zeromq_auth.py`). Does not know columns, nor which messages are accepted (`protocol.py`).

Messages do not queue inside libzmq. An actor has credit for `window` messages. A model is sent on
an actor's request, so at most one is in flight, and it is the newest.
"""

from __future__ import annotations

import secrets
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import zmq

from asyncrl.core.errors import ConfigError, TransportError
from asyncrl.core.inference import InferenceAddress
from asyncrl.core.messages import Peer
from asyncrl.core.segment import SegmentSchema
from asyncrl.transport.wire import WireFormat
from asyncrl.transport.zeromq_learner import ZmqLearnerLink as ZmqLearnerLink
from asyncrl.transport.zeromq_socket import Curve as Curve
from asyncrl.transport.zeromq_socket import ZmqTransportConfig as ZmqTransportConfig
from asyncrl.transport.zeromq_socket import advertised, tcp_endpoint

if TYPE_CHECKING:
    from asyncrl.transport.zeromq_actor import ZmqActorLink
    from asyncrl.transport.zeromq_hosts import ZmqHostsLink

Link = TypeVar("Link", bound=ZmqLearnerLink)

_LOOPBACK = "tcp://127.0.0.1:"


@dataclass(frozen=True, slots=True)
class ZmqTransport:
    """The address of a learner, and the settings that both sides must share.

    Actors are given the address that `admit` returns, a method of the link that `listen` returns:
    it contains the port if that was chosen automatically, and the actor's key if one is needed.
    """

    endpoint: str
    _: KW_ONLY
    schema: SegmentSchema
    run_id: str = field(default_factory=partial(secrets.token_hex, 16))
    config: ZmqTransportConfig = field(default_factory=ZmqTransportConfig)
    curve: Curve | None = None

    def __post_init__(self) -> None:
        private = self.endpoint.startswith(("ipc:///", _LOOPBACK))
        if not private and not (self.curve and self.endpoint.startswith("tcp://")):
            raise ConfigError(
                f"endpoint {self.endpoint!r}: without keys only ipc:///... and {_LOOPBACK}PORT are "
                "supported, because anything wider needs authentication; see ZmqTransport.tcp"
            )
        self._wire()

    @classmethod
    def of(cls, directory: Path, *, schema: SegmentSchema, config: ZmqTransportConfig) -> Self:
        """Return the transport that `config.bind` asks for."""
        if config.bind == "ipc":
            return cls.ipc(directory, schema=schema, config=config)
        return cls.tcp(config.bind, schema=schema, config=config)

    @classmethod
    def ipc(
        cls, directory: Path, *, schema: SegmentSchema, config: ZmqTransportConfig | None = None
    ) -> Self:
        """Return the private default: a socket file in a directory of the user's (0700)."""
        if not zmq.has("ipc"):
            return cls.loopback(schema=schema, config=config)
        endpoint = f"ipc://{directory.absolute()}/learner"
        return cls(endpoint, schema=schema, config=config or ZmqTransportConfig())

    @classmethod
    def loopback(
        cls, port: int = 0, *, schema: SegmentSchema, config: ZmqTransportConfig | None = None
    ) -> Self:
        """Return TCP on this host only; every user of it can connect. Port 0 chooses a free one."""
        endpoint = f"{_LOOPBACK}{port or '*'}"
        return cls(endpoint, schema=schema, config=config or ZmqTransportConfig())

    @classmethod
    def tcp(cls, bind: str, *, schema: SegmentSchema, config: ZmqTransportConfig) -> Self:
        """Return encrypted TCP on one address; only actors with a key from `admit` can connect."""
        endpoint = tcp_endpoint(bind, every_interface=config.bind_every_interface)
        return cls(endpoint, schema=schema, config=config, curve=Curve.make())

    def listen(self) -> ZmqLearnerLink:
        """Open the learner's end. Call it once."""
        return self._listen(ZmqLearnerLink)

    def listen_to_hosts(self) -> ZmqHostsLink:
        """Open the learner's end for actors and their hosts, instead."""
        from asyncrl.transport.zeromq_hosts import ZmqHostsLink  # noqa: PLC0415  # few runs

        return self._listen(ZmqHostsLink)

    def _listen(self, link: type[Link]) -> Link:
        if self.curve is not None and self.curve.public != self.curve.server:
            raise TransportError("these are an actor's keys; a learner listens with its own")
        return link(self.endpoint, self._wire(), self.config, self._address_at, curve=self.curve)

    def connect(self, peer: Peer) -> ZmqActorLink:
        """Open an actor's end."""
        from asyncrl.transport.zeromq_actor import ZmqActorLink  # noqa: PLC0415  # not a learner

        if self.endpoint.endswith("*"):
            raise TransportError("connect to the address of a learner's link: this one has no port")
        if self.curve is not None and not self.curve.secret:
            raise TransportError(
                f"connect {peer} to the address that the learner's `admit` "
                "returned: this one has no key"
            )
        return ZmqActorLink(self.endpoint, self._wire(), self.config, peer, curve=self.curve)

    def advertised(self) -> str:
        """Return where other machines connect to; ask it of a link's `address`, with a port."""
        name = self.config.advertise
        return advertised(name, self.endpoint) if name else self.endpoint

    def inference(self, directory: Path) -> InferenceAddress:
        """Return where a server of inference listens: in a directory of the user's (0700).

        Its actors are on this host, also if others connect to the learner by TCP.
        """
        from asyncrl.transport.unix_inference import UnixInferenceAddress  # noqa: PLC0415  # few runs

        return UnixInferenceAddress(path=directory / "server", wire=self._wire())

    def _address_at(self, endpoint: str, curve: Curve | None) -> Self:
        """Return what actors of this host connect to, with their key."""
        for every, here in (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:")):
            endpoint = endpoint.replace(every, here)
        return replace(self, endpoint=endpoint, curve=curve)

    def _wire(self) -> WireFormat:
        return WireFormat(
            schema=self.schema,
            run_id=self.run_id,
            max_message_bytes=self.config.max_message_bytes,
            max_model_bytes=self.config.max_model_bytes,
        )
