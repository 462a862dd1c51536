"""What an agent's state is made of: how each kind of part is saved, checked and loaded."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.agents.optimizers import LeanOptimizer
from asyncrl.core.errors import CheckpointError
from asyncrl.core.types import Array, Params

_logger = logging.getLogger(__name__)

_GENERATOR_BYTES = {"cpu": 5056, "cuda": 16}
"""How long the state of torch's generators is: Mersenne's twister, or Philox's seed and offset."""

Part = (
    nn.Module
    | LeanOptimizer
    | torch.optim.Optimizer
    | torch.Tensor
    | torch.Generator
    | np.random.Generator
)
"""What an agent's state is made of."""


def mismatch(expected: Mapping[str, tuple[int, ...]], given: Mapping[str, Array | Tensor]) -> str:
    """Say in words what the names or shapes differ in; empty if they do not."""
    if missing := sorted(set(expected) - set(given)):
        return f"it lacks {missing[0]}"
    if unknown := sorted(set(given) - set(expected)):
        return f"it has {unknown[0]}, which is unknown here"
    for name, shape in expected.items():
        if (its := tuple(given[name].shape)) != shape:
            return f"{name} has shape {its}, expected {shape}"
    return ""


def tensors_of(part: Part) -> dict[str, Tensor]:
    """Return what is to be saved of a part; some of it is the part's own."""
    match part:
        case nn.Module():
            return dict(part.state_dict())
        case LeanOptimizer():
            return _by_path(part.state)
        case torch.optim.Optimizer():
            return _by_path(part.state_dict()["state"])
        case torch.Tensor():
            return {"value": part}
        case torch.Generator():
            return {"state": part.get_state()}
        case np.random.Generator():
            words = json.dumps(part.bit_generator.state).encode()
            return {"state": torch.frombuffer(bytearray(words), dtype=torch.uint8)}


def _by_path(state: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {
        f"{index}/{key}": torch.as_tensor(value)
        for index, slots in state.items()
        for key, value in slots.items()
    }


def prepare_part(name: str, part: Part, saved: Params) -> Callable[[], object]:
    """Check what was saved against a part, and return what loads it."""
    if isinstance(part, LeanOptimizer):
        return _prepare_lean(name, part, saved)
    if isinstance(part, torch.optim.Optimizer):
        return _prepare_optimizer(name, part, saved)
    if isinstance(part, torch.Generator):
        return _prepare_generator(name, part, saved)
    now = {key: tuple(value.shape) for key, value in tensors_of(part).items()}
    if isinstance(part, np.random.Generator) and set(saved) == {"state"}:
        now = {"state": saved["state"].shape}  # its numbers have as many digits as they have
    if wrong := mismatch(now, saved):
        raise CheckpointError(f"the saved {name} does not fit this agent's: {wrong}")
    tensors = {key: torch.from_numpy(np.array(value)) for key, value in saved.items()}
    match part:
        case nn.Module():
            return lambda: part.load_state_dict(tensors)
        case torch.Tensor():
            return lambda: part.data.copy_(tensors["value"])
    numbers = _generator_numbers(name, part, saved["state"])
    return lambda: setattr(part.bit_generator, "state", numbers)


def _prepare_generator(name: str, part: torch.Generator, saved: Params) -> Callable[[], object]:
    here = part.device.type
    given = {key: (value.dtype.name, value.shape) for key, value in saved.items()}
    for there, size in _GENERATOR_BYTES.items():
        if there != here and given == {"state": ("uint8", (size,))}:
            return partial(_seed_anew, name, part, saved["state"], there)
    if wrong := mismatch({"state": tuple(part.get_state().shape)}, saved):
        raise CheckpointError(f"the saved {name} does not fit this agent's: {wrong}")
    state = torch.from_numpy(np.array(saved["state"]))
    try:
        torch.Generator(part.device).set_state(state)
    except (RuntimeError, TypeError) as error:
        raise CheckpointError(
            f"the saved {name} is no state of a generator on {here}: {error}"
        ) from error
    return lambda: part.set_state(state)


def _seed_anew(name: str, part: torch.Generator, saved: Array, there: str) -> None:
    """Begin with a seed made of a state that only a generator on another device can go on from."""
    _logger.warning(
        "the saved %s was drawn on %s, and is drawn on %s from now on, beginning with a seed made "
        "of what was saved: this goes on, but not bit for bit",
        name,
        there,
        part.device.type,
    )
    part.manual_seed(int.from_bytes(hashlib.sha256(saved.tobytes()).digest()[:7]))


def _generator_numbers(name: str, part: np.random.Generator, saved: Array) -> object:
    try:
        numbers = json.loads(saved.tobytes())
        type(part.bit_generator)().state = numbers
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"the saved {name} is no state of a {type(part.bit_generator).__name__}: {error}"
        ) from error
    return numbers


def _prepare_optimizer(
    name: str, part: torch.optim.Optimizer, saved: Params
) -> Callable[[], object]:
    params = [param for group in part.param_groups for param in group["params"]]
    state = _by_place(name, params, saved)
    return lambda: part.load_state_dict({**part.state_dict(), "state": state})


def _prepare_lean(name: str, part: LeanOptimizer, saved: Params) -> Callable[[], object]:
    state = _by_place(name, part.params, saved)
    for place, held in state.items():
        expected = {slot: tuple(value.shape) for slot, value in part.nothing(place).items()}
        if wrong := mismatch(expected, held):
            raise CheckpointError(f"the saved {name} does not fit: of parameter {place}, {wrong}")
    return lambda: part.load(state)


def _by_place(name: str, params: Sequence[Tensor], saved: Params) -> dict[int, dict[str, Tensor]]:
    """Return what an optimizer remembered, parameter by parameter, if it can be of these."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in saved.items():
        place, _, slot = key.partition("/")
        if not place.isdigit() or int(place) >= len(params):
            raise CheckpointError(f"the saved {name} has {key}, which is unknown here")
        shape = tuple(params[int(place)].shape)
        if value.shape not in {(), shape}:
            raise CheckpointError(
                f"the saved {name} does not fit: {key} has shape {value.shape}, expected {shape}"
            )
        state.setdefault(int(place), {})[slot] = torch.from_numpy(np.array(value))
    return state
