"""Policies as ONNX models.

    session = onnxruntime.InferenceSession("policy.onnx")
    (action,) = session.run(None, {"obs": obs})            # (n, ...); fields are "obs/NAME"

A model keeps no memory between calls. Memory is an input, zeros where an episode begins, and an
output:

    action, memory = session.run(None, {"obs": obs, "memory": memory})

Needs the packages onnxscript, with which torch writes models, and onnxruntime, which runs them
(extra: `asyncrl[onnx]`).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnxruntime
import onnxscript  # noqa: F401  # torch needs it; if missing, the error is raised here
import torch
from onnx_ir.passes import common
from onnxruntime.capi import onnxruntime_pybind11_state as refusals
from torch import Tensor, nn
from torch.utils import _pytree

from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array, BoolArray
from asyncrl.export.policy_numpy import middle_and_half

_OPSET, _IR_VERSION = 18, 8
"""Those of onnx 1.13, so that runtimes since the end of 2022 can read the models."""

_DOC = "A greedy policy. memory, if there is one: memory_after of the step before, or zeros."


class Acting(nn.Module):
    """Maps raw observations, and the memory if there is one, to actions.

    `said` describes observations and actions as in `policy_numpy.py`.
    """

    def __init__(self, network: nn.Module, said: Mapping[str, Any]) -> None:
        super().__init__()
        self.network = network
        self._scales = [torch.tensor(field["scale"]) for field in said["observation"].values()]
        self._warned = said["action"]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the actions, and the new memory if there is one."""
        n_fields = len(self._scales)
        fields, memory = inputs[:n_fields], inputs[n_fields:]
        read = [x.float() / scale for x, scale in zip(fields, self._scales, strict=True)]
        answer, *others = _pytree.tree_leaves(self.network(*read, *memory))
        return (self._action(answer), *others[: len(memory)])

    def _action(self, answer: Tensor) -> Tensor:
        """Compute the action as `policy_numpy.Policy` does."""
        said = self._warned
        low, high = (np.array(said[side]) for side in ("low", "high"))
        dtype = getattr(torch, said["dtype"])
        if said["kind"] == "choices":
            parts = answer.split((high - low + 1).tolist(), dim=1)
            best = torch.stack([part.argmax(dim=1) for part in parts], dim=1)
            action = (best + torch.from_numpy(low)).to(dtype)
        else:
            unit = answer[:, : low.size]
            unit = unit.tanh() if said["squashed"] else unit
            middle, half = map(torch.from_numpy, middle_and_half(low, high))
            bounds = [torch.from_numpy(side.astype(said["dtype"])) for side in (low, high)]
            action = (middle + half * unit).to(dtype).clamp(*bounds)
        return action.reshape(-1, *said["shape"])


def onnx_model(
    program: torch.export.ExportedProgram, said: Mapping[str, Any], *, remembers: bool
) -> bytes:
    """Return a model of the traced `Acting`."""
    inputs = [_input(name) for name in said["observation"]] + ["memory"] * remembers
    rows = tuple({0: "n"} for _ in inputs) if said["any_batch"] else None
    with _quiet():
        try:
            written: Any = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=_OPSET,
                input_names=inputs,
                output_names=["action", "memory_after"][: 1 + remembers],
                dynamic_shapes=rows,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            reason: BaseException = error  # torch's own message is for developers of torch
            while reason.__cause__ is not None:
                reason = reason.__cause__
            raise ConfigError(f"the network cannot be exported to ONNX: {reason}") from error
    common.ClearMetadataAndDocStringPass()(written.model)  # contains paths of this machine
    written.model.ir_version = _IR_VERSION
    written.model.producer_name = "asyncrl"
    written.model.graph.doc_string = _DOC
    content: bytes = written.model_proto.SerializeToString()
    return content


class RunningModel:
    """Runs a model in onnxruntime."""

    def __init__(self, content: bytes) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            content, options, providers=["CPUExecutionProvider"]
        )
        shapes = {one.name: one.shape for one in self._session.get_inputs()}
        self._any_batch = all(isinstance(shape[0], str) for shape in shapes.values())
        self._memory_size = shapes["memory"][1] if "memory" in shapes else 0
        self._memory = np.zeros((0, self._memory_size), np.float32)

    def reset(self, begins: BoolArray) -> None:
        """Reset the memory where (B,) an episode begins; it must begin everywhere at first."""
        if not len(self._memory):
            self._memory = np.zeros((len(begins), self._memory_size), np.float32)
        self._memory = np.where(begins[:, None], np.float32(0.0), self._memory)

    def act(self, obs: Array | dict[str, Array]) -> Array:
        """Return the actions for a batch of observations."""
        fields = obs if isinstance(obs, Mapping) else {"": obs}
        inputs = {_input(name): array for name, array in fields.items()}
        if self._memory_size:
            inputs["memory"] = self._memory
        one_by_one = [slice(i, i + 1) for i in range(len(self._memory))]
        runs = [
            self._run({name: array[rows] for name, array in inputs.items()})
            for rows in ([slice(None)] if self._any_batch else one_by_one)
        ]
        action, *memory = (np.concatenate(parts) for parts in zip(*runs, strict=True))
        if memory:
            self._memory = memory[0]
        return action

    def _run(self, inputs: dict[str, Array]) -> list[Array]:
        try:
            return [*self._session.run(None, inputs)]
        except (refusals.Fail, refusals.InvalidArgument, refusals.RuntimeException) as error:
            raise ValueError(f"the model cannot be run: {error}") from error


def _input(field: str) -> str:
    return f"obs/{field}" if field else "obs"


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's own warnings and logs."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # about optional packages that are missing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.filterwarnings("ignore", "# The axis name: n will not be used")
            yield
    finally:
        logger.setLevel(level)
