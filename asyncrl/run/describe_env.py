"""Inspects the environments of a run in a child process.

Constructors of environments may do anything to their process: end it, change its directory, ignore
its signals, start threads that never end. None of this affects the process that trains.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncrl.core.env import (
    BoxSpec,
    DiscreteSpec,
    EnvDescription,
    EnvSource,
    EnvSpec,
    MakeBatchEnv,
    PackedSpec,
    source_of,
)
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.types import Array

if TYPE_CHECKING:  # torch, which the child does not need, and what starts children
    from asyncrl.fleet.local import LocalLauncher
    from asyncrl.run.run_config import RunConfig

Plain = dict[str, Any]

PRELOAD = ("asyncrl.envs.gym",)
"""Modules that the child needs; the launcher preloads them first."""


def describe_in_child(
    make_env: MakeBatchEnv,
    *,
    timeout_s: float,
    launcher: LocalLauncher | None = None,
    goals: bool = False,
    interrupter: Interrupter | None = None,
) -> EnvDescription:
    """Make environments in a child process, inspect and close them, and return the facts.

    `goals` asks how rewards are computed from goals, for which one environment may be stepped.
    Makes one environment if a config or `make_batch` gives their number. Raises what `run_in_child`
    does, also when `interrupter` ends the run; `timeout_s` is `supervision.start_timeout_s`.
    """
    from asyncrl.fleet.in_child import run_in_child  # noqa: PLC0415  # who reads facts starts none

    seen = run_in_child(
        partial(_describe, source_of(make_env), goals=goals),
        what="building the environment",
        timeout_s=timeout_s,
        timeout_setting="supervision.start_timeout_s",
        launcher=launcher,
        preload=PRELOAD,
        interrupter=interrupter,
    )
    return description_of(seen)


def describe_env_of_run(config: RunConfig) -> EnvDescription:
    """Inspect the environments of a run's actors in a child process."""
    timeout_s = config.supervision.start_timeout_s
    return describe_in_child(config.env_config().build, timeout_s=timeout_s)


def _describe(source: EnvSource, *, goals: bool) -> Plain:
    """Inspect the environments, in the child. Imports only what makes environments."""
    return plain_description(source.describe(goals=goals))


def plain_description(seen: EnvDescription) -> Plain:
    """Return the facts about environments as plain values, which JSON can represent."""
    return {**seen._asdict(), "spec": plain_spec(seen.spec)}


def description_of(plain: Plain) -> EnvDescription:
    """Return what `plain_description` was made of."""
    return EnvDescription(**{**plain, "spec": spec_of(plain["spec"])})


def plain_spec(spec: EnvSpec) -> Plain:
    """Return spaces as plain values, which JSON can represent."""
    return {"observation": _plain_space(spec.observation), "action": _plain_space(spec.action)}


def spec_of(plain: Mapping[str, Any]) -> EnvSpec:
    """Return what `plain_spec` was made of."""
    return EnvSpec(_space_of(plain["observation"]), _space_of(plain["action"]))


def _plain_space(space: BoxSpec | PackedSpec | DiscreteSpec) -> Plain:
    match space:
        case DiscreteSpec(n, start):
            return {"n": int(n), "start": int(start)}
        case PackedSpec(fields):
            return {"fields": [[name, _plain_space(box)] for name, box in fields]}
        case BoxSpec():
            return {
                "shape": list(map(int, space.shape)),
                "dtype": str(space.dtype),
                "low": _plain_array(space.low),
                "high": _plain_array(space.high),
                "categorical": bool(space.categorical),
            }


def _space_of(plain: Plain) -> Any:  # noqa: ANN401  # of any kind
    match plain:
        case {"n": n, "start": start}:
            return DiscreteSpec(n, start)
        case {"fields": fields}:
            return PackedSpec(tuple((name, _space_of(box)) for name, box in fields))
        case _:
            return BoxSpec(
                tuple(plain["shape"]),
                plain["dtype"],
                _array_of(plain["low"]),
                _array_of(plain["high"]),
                categorical=plain["categorical"],
            )


def _plain_array(array: Array) -> Plain:
    array = np.asarray(array)
    if array.size > 1 and (array == array.flat[0]).all():
        one = base64.b64encode(array.flat[0].tobytes()).decode()
        return {"dtype": array.dtype.str, "shape": list(array.shape), "all": one}
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def _array_of(plain: Mapping[str, Any]) -> Array:
    if (one := plain.get("all")) is not None:
        return np.full(plain["shape"], np.frombuffer(base64.b64decode(one), plain["dtype"])[0])
    data = base64.b64decode(plain["data"])
    return np.frombuffer(data, np.dtype(plain["dtype"])).reshape(plain["shape"]).copy()
