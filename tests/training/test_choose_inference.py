"""`inference=auto` chooses a server where a network takes long, and batches shorten that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from asyncrl.core.agent import PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.inference import Inference, observation_input
from asyncrl.core.types import Columns
from asyncrl.training.choose_inference import is_server_faster
from tests.support.fakes import COUNTING_SPEC, ConstantConfig


@dataclass
class Slow:
    """A network that takes some time for a batch, and more for each row; time is its own."""

    batch_s: float
    row_s: float = 0.0
    now_s: float = 0.0
    inference_inputs = observation_input(COUNTING_SPEC)

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> Slow:
        return self

    def inference(self, inputs: Columns) -> Columns:
        self.now_s += self.batch_s + self.row_s * len(inputs["obs"])
        return {}


class Fast(Slow):
    """Takes no time in an actor or a server, which have one thread each."""

    def fast_inference(self, *, one_thread: bool) -> Inference | None:
        return (lambda _: {}) if one_thread else None


@pytest.mark.parametrize(
    ("network", "actors", "n_envs", "cores", "faster"),
    [
        (Slow(1.5e-3), 16, 1, 2, True),
        (Slow(1.5e-3), 16, 1, 16, False),  # a core for each actor
        (Slow(1.5e-3), 2, 1, 2, False),  # batches of one
        (Slow(50e-6), 16, 1, 2, False),  # a request takes longer
        (Fast(1.5e-3), 16, 1, 2, False),
        (Slow(0.0, row_s=1.5e-3), 16, 1, 2, False),  # batches save nothing
        (Slow(1.5e-3, row_s=0.1e-3), 16, 64, 2, False),  # each actor makes a batch
    ],
)
def test_a_server_is_chosen_for_large_networks_of_many_actors(
    network: Any, actors: int, n_envs: int, cores: int, faster: bool
) -> None:
    found = is_server_faster(
        [network] * actors, COUNTING_SPEC, n_envs=n_envs, cores=cores, clock=lambda: network.now_s
    )
    assert found == faster


def test_policies_in_one_piece_compute_for_themselves() -> None:
    assert not is_server_faster([ConstantConfig()] * 16, COUNTING_SPEC, n_envs=1, cores=1)
