"""Flags of settings that may be schedules: a number, or points of environment steps and values.

--agent.learning-rate 3e-4
--agent.learning-rate 0:3e-4,1e6:0          a straight line
--agent.learning-rate steps,0:3e-4,5e5:1e-4  a value holds until the next point
"""

from __future__ import annotations

import typing

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from asyncrl.agents.parts.schedules import Schedule
from asyncrl.core.errors import ConfigError

_STEPS = "steps,"

REGISTRY = ConstructorRegistry()
"""Tells tyro to read and show such settings as below; without it each would be a subcommand."""


@REGISTRY.primitive_rule
def _schedule_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[typing.Any] | None:
    kinds = typing.get_args(info.type)
    if Schedule not in kinds:
        return None
    may_be_none = type(None) in kinds
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="{None|FLOAT|STEPS:FLOAT,...}" if may_be_none else "{FLOAT|STEPS:FLOAT,...}",
        instance_from_str=lambda words: (
            None if may_be_none and words[0] == "None" else read_setting(words[0])
        ),
        is_instance=lambda value: (
            isinstance(value, int | float | Schedule) or (may_be_none and value is None)
        ),
        str_from_instance=lambda value: [show_setting(value)],
    )


def read_setting(text: str) -> float | Schedule:
    """Return the number or the schedule that a flag's value stands for."""
    try:
        if ":" not in text:
            return float(text)
        points = text.removeprefix(_STEPS).split(",")
        pairs = [point.split(":") for point in points]
        return Schedule(
            points=tuple((_whole(env_steps), float(value)) for env_steps, value in pairs),
            interpolate=not text.startswith(_STEPS),
        )
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(
            f"expected a number, or points of environment steps and values as in "
            f"0:3e-4,1e6:0, got {text!r}"
        ) from error


def show_setting(setting: float | Schedule | None) -> str:
    """Return the text that `read_setting` makes the same setting of."""
    if not isinstance(setting, Schedule):
        return str(setting)
    points = ",".join(f"{env_steps}:{value}" for env_steps, value in setting.points)
    return points if setting.interpolate else _STEPS + points


def _whole(text: str) -> int:
    number = float(text)
    if not number.is_integer():
        raise ConfigError(f"environment steps of a schedule must be whole numbers, got {text}")
    return int(number)
