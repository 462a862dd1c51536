"""A Ray cluster of which a test decides everything: what fits, what ends, what is lost."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any


class Ref:
    """What a method of a remote actor will return."""

    def __init__(self, actor: Actor) -> None:
        self.actor = weakref.ref(actor)
        self.result: Any = None
        self.error: Exception | None = None
        self.done = False

    def returns(self, result: Any) -> None:
        self.result, self.done = result, True

    def fails(self, error: Exception) -> None:
        self.error, self.done = error, True


class Actor:
    """A handle, in no circle of references: it must go once the last one of a driver is dropped."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.killed = False
        self.args: tuple[Any, ...] = ()
        self._named, self.ended = Ref(self), Ref(self)

    @property
    def name(self) -> Any:
        return SimpleNamespace(remote=lambda: self._named)

    @property
    def serve(self) -> Any:
        return SimpleNamespace(remote=self._serve)

    def _serve(self, *args: Any) -> Ref:
        self.args = args
        return self.ended

    def starts(self, name: str) -> None:
        self._named.returns(name)


class ScriptedRay:
    """Stands for the module `ray`."""

    def __init__(self, *cpus: float, fits: bool = True) -> None:
        self._cpus = cpus
        self._live: list[weakref.ref[Actor]] = []
        self.inits: list[dict[str, Any]] = []
        self.init_fails: BaseException | None = None
        self.lost_nodes: set[int] = set()
        self.closed = False
        self.bundles: list[dict[str, float]] = []
        self.strategy = ""
        self.group = SimpleNamespace(wait=lambda _: fits)
        self.util = SimpleNamespace(
            placement_group=self._place,
            remove_placement_group=lambda _: None,
            get_node_ip_address=lambda: "10.0.0.1",
            scheduling_strategies=SimpleNamespace(PlacementGroupSchedulingStrategy=_strategy),
        )

    @property
    def actors(self) -> list[Actor]:
        """The handles that are still held, in the order in which they were made."""
        return [actor for one in self._live if (actor := one())]

    def init(self, **options: Any) -> None:
        self.inits.append(options)
        if self.init_fails:
            raise self.init_fails

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": str(i), "Alive": i not in self.lost_nodes, "Resources": {"CPU": cpus}}
            for i, cpus in enumerate(self._cpus)
        ]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "0")

    def available_resources(self) -> dict[str, float]:
        return {"CPU": sum(self._cpus)}

    def remote(self, _: type) -> Any:
        return SimpleNamespace(options=lambda **o: SimpleNamespace(remote=lambda: self._actor(o)))

    def wait(self, refs: list[Ref], *, num_returns: int = 1, timeout: float) -> Any:
        return [ref for ref in refs if ref.done], [ref for ref in refs if not ref.done]

    def get(self, ref: Ref) -> Any:
        if ref.error:
            raise ref.error
        return ref.result

    def kill(self, actor: Actor) -> None:
        actor.killed = True

    def shutdown(self) -> None:
        self.closed = True

    def _place(self, bundles: list[dict[str, float]], strategy: str) -> Any:
        self.bundles, self.strategy = bundles, strategy
        return self.group

    def _actor(self, options: dict[str, Any]) -> Actor:
        actor = Actor(options)
        self._live.append(weakref.ref(actor))
        return actor


def _strategy(_: object, placement_group_bundle_index: int) -> int:
    return placement_group_bundle_index
