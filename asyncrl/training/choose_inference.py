"""Decides for `inference=auto` whether a server would compute the actors' networks faster.

Measures the networks alone, in the learner's process, in about a second. Compared is the time
in which all actors act once:

    each for itself    (actors on one core) * (a network with one actor's rows)
    from a server      (batches) * (a network with a batch's rows) + (actors) * (a request)

Environments take the same time in both cases and are left out, which favours actors that compute
for themselves: a server also computes while environments step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from asyncrl.core.agent import AgentConfig, PolicyContext
from asyncrl.core.env import EnvSpec
from asyncrl.core.inference import HasInference, Inference, fastest_inference
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.torch_threads import set_torch_threads, torch_threads

_logger = logging.getLogger(__name__)

_REQUEST_S = 100e-6
"""A server's own time for one request beside the time of the network, measured on an EPYC."""

_MARGIN = 0.8
"""A server must take at most this share of the time, since measurements vary."""

_BATCHES = 2
"""Batches in which a server computes one act of each actor; see `serving.min_batch`."""

_COPIES = 8
"""Networks to measure in turn: those of many actors do not fit into a cache together."""

_TIMES = 5


def is_server_faster(
    agents: Iterable[AgentConfig],
    spec: EnvSpec,
    *,
    n_envs: int,
    cores: float,
    clock: Callable[[], float] = time.perf_counter,
) -> bool:
    """Return whether one act of each actor is computed faster by a server; log why.

    `agents` has one entry for each actor, `n_envs` are the environments of each.
    """
    configs = list(agents)
    context = PolicyContext(seed=0, n_envs=n_envs)
    policies = [config.build_policy(spec, context) for config in configs[:_COPIES]]
    served = [policy for policy in policies if isinstance(policy, HasInference)]
    if not served:
        return False
    columns = served[0].inference_inputs
    actors = len(configs)
    before = torch_threads()
    set_torch_threads(1)  # as in actors and in a server
    try:
        own = [fastest_inference(policy, one_thread=True) for policy in served]
        own_s = _computed_s(own, columns, n_envs, clock)
        batch = -(-actors * n_envs // _BATCHES)
        batch_s = _computed_s(own[:1], columns, batch, clock)
    finally:
        set_torch_threads(before or 1)
    apart_s = own_s * actors / min(cores, actors)
    served_s = min(actors, _BATCHES) * batch_s + actors * _REQUEST_S
    faster = served_s < _MARGIN * apart_s
    _logger.info(
        "inference=auto: %d actors on %g cores need %.2f ms for one act of each, a server %.2f ms; "
        "networks are computed in %s",
        actors,
        cores,
        1e3 * apart_s,
        1e3 * served_s,
        "a server" if faster else "each actor",
    )
    return faster


def _computed_s(
    networks: Sequence[Inference],
    columns: Iterable[ColumnSpec],
    rows: int,
    clock: Callable[[], float],
) -> float:
    """Return the mean time of these networks for this number of rows; the shortest of a few."""
    inputs = {column.name: np.zeros((rows, *column.shape), column.dtype) for column in columns}
    times = []
    for _ in range(_TIMES):
        begun = clock()
        for network in networks:
            network(inputs)
        times.append((clock() - begun) / len(networks))
    return min(times)
