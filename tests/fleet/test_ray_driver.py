"""Hosts on a scripted Ray cluster: where they are placed, how they are lost, how they end."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from asyncrl.core.errors import ConfigError
from asyncrl.fleet.ray_driver import Driver, HostActor, checked_address
from tests.fleet.test_actor_manager import Clock
from tests.support.scripted_ray import ScriptedRay


@pytest.fixture
def address() -> Iterator[str]:
    """The address of something that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class Case:
    def __init__(self, address: str, ray: ScriptedRay, **changes: Any) -> None:
        order = {"hosts": 0, "cpus_per_actor": 1.0, "placement": "spread", "timeout_s": 7.0}
        self.said: list[Mapping[str, Any]] = []
        self.clock = Clock()
        self.ray = ray
        self.driver = Driver(
            ray,
            {"actors": 4, "address": address, **order, **changes},
            lambda **message: self.said.append(message),
            clock=self.clock,
        )

    def started(self) -> Case:
        self.driver.place()
        self.driver.serve(b"body")
        for index, actor in enumerate(self.ray.actors):
            actor.starts(f"node{index}/1")
        self.look()
        return self

    def look(self, after_s: float = 0.0) -> None:
        self.clock.now += after_s
        self.driver.look(0.0)


class RayError(Exception):
    """As in Ray."""


class OutOfMemoryError(RayError):
    """In Ray it is no RayActorError."""


def test_one_actor_per_node_shares_the_actors_and_is_never_restarted_by_ray(address: str) -> None:
    case = Case(address, ScriptedRay(8.0, 8.0, 8.0)).started()
    assert [actor.args for actor in case.ray.actors] == [(b"body", 2), (b"body", 1), (b"body", 1)]
    assert case.ray.bundles == [{"CPU": 2}, {"CPU": 1}, {"CPU": 1}]
    assert case.ray.strategy == "SPREAD"
    # A working_dir would leave out what .gitignore names; without an address Ray starts a cluster.
    init = {"address": address, "log_to_driver": False, "logging_level": "CRITICAL"}
    assert case.ray.inits == [init]
    assert [actor.options for actor in case.ray.actors] == [
        {"num_cpus": cpus, "max_restarts": 0, "max_concurrency": 1, "scheduling_strategy": index}
        for index, cpus in enumerate((2, 1, 1))
    ]


@pytest.mark.parametrize(
    ("changes", "bundles"),
    [
        ({"hosts": 9, "actors": 2}, [{"CPU": 1}, {"CPU": 1}]),
        ({"hosts": 1, "cpus_per_actor": 0.4}, [{"CPU": 2}]),
        ({"hosts": 1, "cpus_per_actor": 0.01}, [{"CPU": 0.04}]),
    ],
)
def test_hosts_and_their_cpus_are_settings(
    address: str, changes: dict[str, Any], bundles: list[dict[str, float]]
) -> None:
    case = Case(address, ScriptedRay(8.0), **changes)
    assert case.driver.place() == "10.0.0.1"
    assert case.ray.bundles == bundles


def test_a_cluster_that_is_too_small_is_described(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Case(address, ScriptedRay(1.0, 2.0, fits=False), hosts=2).driver.place()
    for words in ("2 + 2 CPUs in 7 s", "have 2, 1 CPUs, of which 3 ", "ray.cpus_per_actor"):
        assert words in str(caught.value)


@pytest.mark.parametrize("error", [SystemExit(15), RuntimeError("Version mismatch: 2.60\nmore")])
def test_a_cluster_that_does_not_take_us_is_described(address: str, error: BaseException) -> None:
    ray = ScriptedRay(8.0)
    ray.init_fails = error
    with pytest.raises(ConfigError, match=r"cannot connect to Ray .*must run on a node") as caught:
        Case(address, ray).driver.place()
    assert "more" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OutOfMemoryError("Task was killed\nmore"), "OutOfMemoryError: Task was killed"),
        (RayError(), "RayError"),
        (
            RayError("creation task\n\nModuleNotFoundError: No module named 'asyncrl'"),
            "ModuleNotFoundError: No module named 'asyncrl' (install it on every node of the "
            "cluster)",
        ),
    ],
)
def test_a_lost_host_is_reported_and_placed_again(
    address: str, error: Exception, words: str
) -> None:
    case = Case(address, ScriptedRay(8.0, 8.0)).started()
    case.ray.actors[1].ended.fails(error)
    case.look()
    assert case.said == [{"ended": "node1/1", "why": words}]
    assert len(case.ray.actors) == 1, "its handle is dropped"
    case.look(after_s=1.0)
    assert [actor.args[1] for actor in case.ray.actors] == [2, 2]


def test_a_host_that_fails_again_and_again_waits_longer(address: str) -> None:
    case = Case(address, ScriptedRay(8.0, 8.0)).started()
    for wait_s in (0.5, 1.0, 2.0):
        case.ray.actors[-1].ended.fails(RayError("gone"))
        case.look()
        case.look(after_s=wait_s - 0.1)
        assert len(case.ray.actors) == 1
        case.look(after_s=0.2)
        assert len(case.ray.actors) == 2


def test_a_run_without_any_host_that_starts_fails(address: str) -> None:
    case = Case(address, ScriptedRay(8.0, 8.0)).started()

    def end_all() -> None:
        for actor in case.ray.actors:
            actor.ended.returns("Refused: refused")

    for _ in range(2):
        end_all()
        case.look()
        case.look(after_s=5.0)
    end_all()
    with pytest.raises(ConfigError, match=r"each of the 2 hosts .* 3 times in a row.*refused"):
        case.look()
    assert case.said[0] == {"ended": "node0/1", "why": "failed: Refused: refused"}


def test_a_run_whose_own_node_is_lost_fails(address: str) -> None:
    case = Case(address, ScriptedRay(8.0, 8.0)).started()
    case.ray.lost_nodes = {1}
    case.ray.actors[1].ended.fails(RayError("gone"))
    case.look()
    case.look(after_s=1.0)
    assert len(case.ray.actors) == 2, "another node"
    case.ray.lost_nodes = {0}
    for actor in case.ray.actors:
        actor._named.fails(RayError("gone"))
        actor.ended.fails(RayError("gone"))
    case.look()
    assert [said["ended"] for said in case.said] == ["node1/1", "node0/1", "without a name"]
    with pytest.raises(ConfigError, match="the node that the learner runs on"):
        case.look(after_s=5.0)


def test_hosts_that_end_with_the_run_do_not_start_again(address: str) -> None:
    case = Case(address, ScriptedRay(8.0, 8.0)).started()
    for index in range(2):
        case.ray.actors[index].ended.returns("")
    case.look()
    case.look(after_s=100.0)
    case.driver.end()
    assert case.ray.actors == []
    assert case.said == []
    assert case.ray.closed


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ray://head:10001", "hosts cannot reach the learner: run the learner on a node"),
        ("local", "must be auto or HOST:PORT, got 'local'; a cluster is never started here"),
        ("", "must be auto or HOST:PORT"),
        ("head:99999", "must be auto or HOST:PORT"),
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1 "),
        ("auto", "no Ray cluster was found on this machine: give ray.address"),
    ],
)
def test_an_address_that_cannot_work_is_refused(
    address: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    find = SimpleNamespace(canonicalize_bootstrap_address=lambda _: None)
    with pytest.raises(ConfigError, match=words):
        checked_address(SimpleNamespace(_private=SimpleNamespace(services=find)), address)


def test_what_a_host_raises_is_put_into_words_where_it_runs() -> None:
    def run(room: int) -> None:
        if room > 1:
            raise ConfigError(f"{room} are too many")

    body = cloudpickle.dumps(([], cloudpickle.dumps(run)))
    assert HostActor().serve(body, 1) == ""
    assert HostActor().serve(body, 2) == "ConfigError: 2 are too many"
    assert "UnpicklingError" in HostActor().serve(b"nonsense", 1)
