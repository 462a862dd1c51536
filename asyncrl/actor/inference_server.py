"""What a server of inference runs: it computes the networks of all actors, in batches.

It is the same in a separate process and in a thread of the learner. It remembers nothing of any
actor: a recurrent memory comes with each request, so that a server can be replaced at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np

from asyncrl.actor.batcher import Batcher
from asyncrl.actor.process import set_up_process
from asyncrl.core.agent import AgentConfig, BuildPolicy, Policy, PolicyContext, acted
from asyncrl.core.env import EnvSpec
from asyncrl.core.errors import ConfigError, ConnectionLost, TransportError
from asyncrl.core.inference import (
    NOISE,
    OBS,
    HasInference,
    InferenceAddress,
    InferenceAnswer,
    InferenceListener,
    InferenceRequest,
    ServingConfig,
    fastest_inference,
)
from asyncrl.core.interrupter import CrashForwardingThread, Interrupter, start_thread
from asyncrl.core.launcher import Progress, Spec
from asyncrl.core.messages import Hello, ModelInfo, Peer
from asyncrl.core.torch_threads import share_torch_threads
from asyncrl.core.transport import ActorLink, Transport
from asyncrl.core.types import Columns, ModelVersion
from asyncrl.fleet.threads import ThreadProgress

_WAIT_S = 0.1
"""Length of one wait; between two waits the server checks whether it must finish."""

_MOST_LAYOUTS = 1024
"""Number of checked layouts to remember: one for each number of environments, in practice."""

_Layout = tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]

_END_S = 10.0
"""Time that a thread may take to end."""


class ServedPolicy(Policy, HasInference, Protocol):
    """A policy that a server can compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceServerSpec(Spec):
    """Everything that a server of inference is built from."""

    env_spec: EnvSpec
    agent: AgentConfig
    transport: Transport
    address: InferenceAddress
    seed: int
    serving: ServingConfig = field(default_factory=ServingConfig)

    owns_process: bool = True
    """Whether its process runs nothing else, limited to one thread: it may set up logging and the
    global random generators."""

    def run(self, peer: Peer, progress: Progress) -> None:
        """Answer the requests of all actors with the newest model, until asked to finish."""
        if self.owns_process:
            set_up_process("inference server", self.seed, peer)
        policy = served(self.agent.build_policy(self.env_spec, PolicyContext(seed=self.seed)))
        place(policy, self.serving.device)
        policy.inference = fastest_inference(policy, one_thread=self.owns_process)
        with ExitStack() as opened:
            learner = self.transport.connect(peer)
            opened.callback(learner.close)
            listener = self.address.listen()
            opened.callback(listener.close)
            server = InferenceServer(policy, learner, listener, Batcher(self.serving))
            hello = Hello(peer=peer, schema_hash="")
            while not learner.hello(hello, _WAIT_S):  # without a heartbeat, as in an actor
                if progress.finishing():
                    return
            while not (learner.stopping() or progress.finishing()):
                server.run_turn(progress)


def served(policy: Policy) -> ServedPolicy:
    """Return a policy as one that can be served; raise if it cannot."""
    if isinstance(policy, HasInference):
        return cast(ServedPolicy, policy)
    raise ConfigError(
        f"{type(policy).__name__} computes its network within `act`, so that no server can do it; "
        "set inference to actor, or compute by an object `inference`, see asyncrl/core/inference.py"
    )


def place(policy: Policy, device: str) -> None:
    """Move a policy's network to a device; raise if that is impossible."""
    inference: Any = served(policy).inference
    if hasattr(inference, "compute_on"):
        inference.compute_on(device)
    elif device != "cpu":
        raise ConfigError(
            f"serving.device is {device!r}, but {type(inference).__name__} has no method "
            "`compute_on(device)`, as LocalInference has; set serving.device to cpu"
        )


def check_served(policy: Policy, spec: EnvSpec) -> BuildPolicy | None:
    """Raise if a server cannot compute for this policy: try one act.

    Return what builds the half of it that chooses, or None if it is in one piece.
    """
    policy = served(policy)
    inference, asked = policy.inference, []

    def infer(inputs: Columns) -> Columns:
        asked.append(inputs)
        return inference(inputs)

    policy.inference = infer
    policy.train(False)
    acted(policy, np.zeros((1, *spec.observation.shape), spec.observation.dtype))
    if not asked:
        raise ConfigError(
            f"`act` of {type(policy).__name__} does not use its `inference`, so that a server "
            "would compute nothing; set inference to actor, or call self.inference(inputs)"
        )
    return cast("BuildPolicy | None", getattr(policy, "chooser_spec", None))


class InferenceThread:
    """A server of inference as a thread of the learner; its failure ends the run.

    The manager does not know it, so it starts its next incarnation itself if its connection breaks.
    """

    def __init__(
        self, make_spec: Callable[[Peer], InferenceServerSpec], peer: Peer, interrupter: Interrupter
    ) -> None:
        self._make_spec = make_spec
        self._peer = peer
        self._progress = ThreadProgress()
        self._thread = CrashForwardingThread(interrupter, self._run, "asyncrl-inference")

    def start(self) -> None:
        """Begin to answer requests."""
        start_thread(self._thread)

    def stop(self) -> None:
        """Wait until it has ended; may be called again."""
        self._progress.finish()
        if self._thread.ident is not None and not self._thread.has_ended(_END_S):
            raise TransportError(
                f"the thread of inference did not end within {_END_S:g} s: a batch takes longer; "
                "lower serving.max_batch"
            )

    def _run(self) -> None:
        share_torch_threads()
        while True:
            spec = replace(self._make_spec(self._peer), owns_process=False)
            try:
                return spec.run(self._peer, self._progress)
            except ConnectionLost:
                self._peer = replace(self._peer, incarnation=self._peer.incarnation + 1)


class InferenceServer:
    """Gathers requests, and answers each batch with one model.

    A new model is loaded between two batches.
    """

    def __init__(
        self,
        policy: ServedPolicy,
        learner: ActorLink,
        listener: InferenceListener,
        batcher: Batcher,
    ) -> None:
        self._policy = policy
        self._inputs = {spec.name: spec for spec in policy.inference_inputs}
        self._learner = learner
        self._listener = listener
        self._batcher = batcher
        self._model = ModelInfo(version=ModelVersion(-1), params={})
        self._accepted: set[_Layout] = set()

    def run_turn(self, progress: Progress) -> None:
        """Wait for requests, or compute a batch if one is due."""
        if self._model.version < 0:
            progress.waiting(True)
            self._sync_model(_WAIT_S)
            return
        wait_s = self._batcher.wait_s()
        progress.waiting(wait_s is None)
        for request in self._listener.receive(_WAIT_S if wait_s is None else min(wait_s, _WAIT_S)):
            self._take(request)
        if self._batcher.wait_s() == 0.0:
            self._sync_model()
            self._compute(self._batcher.take())
            self._batcher.computed()
            progress.turn(0)

    def _sync_model(self, timeout_s: float = 0.0) -> None:
        info = self._learner.latest_model("act", self._model.version, timeout_s)
        if info is not None:
            self._policy.sync_model(info)
            self._model = replace(info, params={})

    def _take(self, request: InferenceRequest) -> None:
        """Answer at once what needs no network; leave the rest to the batcher."""
        if not request.inputs:
            self._sync_model()
            self._answer(request, {})
        elif (layout := _layout_of(request.inputs)) in self._accepted:
            self._batcher.add(request)
        elif wrong := self._wrong(request.inputs):
            self._answer(request, {}, wrong)
        else:
            if len(self._accepted) < _MOST_LAYOUTS:
                self._accepted.add(layout)
            self._batcher.add(request)

    def _compute(self, batch: Sequence[InferenceRequest]) -> None:
        if len(batch) == 1:
            self._answer(batch[0], self._policy.inference(_own(batch[0].inputs)))
            return
        inputs = {
            name: np.concatenate([request.inputs[name] for request in batch])
            for name in batch[0].inputs
        }
        outputs = self._policy.inference(inputs)
        first = 0
        for request in batch:
            end = first + len(request.inputs[OBS])
            self._answer(request, {name: rows[first:end] for name, rows in outputs.items()})
            first = end

    def _answer(self, request: InferenceRequest, outputs: Columns, error: str = "") -> None:
        answer = InferenceAnswer(
            number=request.number,
            version=self._model.version,
            env_steps=self._model.env_steps,
            n_actors=self._model.n_actors,
            outputs=outputs,
            error=error,
        )
        self._listener.answer(request.peer, answer)

    def _wrong(self, inputs: Columns) -> str:
        """Return what is wrong with the inputs of a request, or an empty string."""
        if missing := self._inputs.keys() - inputs.keys() - {NOISE}:
            return f"a request lacks {sorted(missing)}"
        if any(rows.ndim == 0 for rows in inputs.values()):
            return "a request has an array without rows"
        for name, rows in inputs.items():
            spec = self._inputs.get(name)
            if spec is None or (spec.dtype, spec.shape) != (str(rows.dtype), rows.shape[1:]):
                return f"a request has {name} as {rows.dtype}{rows.shape}, expected rows of {spec}"
            if not 0 < len(rows) == len(inputs[OBS]):
                return f"a request has {len(rows)} rows of {name}, {len(inputs[OBS])} of {OBS}"
        return ""


def _layout_of(inputs: Columns) -> _Layout:
    """Return what `_wrong` looks at."""
    return tuple((name, rows.dtype, rows.shape) for name, rows in inputs.items())


def _own(inputs: Columns) -> Columns:
    """Return writable copies: torch warns of arrays that are views of a message."""
    return {name: rows.copy() for name, rows in inputs.items()}
