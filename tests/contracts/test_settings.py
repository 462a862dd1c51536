"""Every setting there is takes what its field declares, and refuses the rest by its name."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pkgutil
import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import asyncrl
from asyncrl.core.declared import Kind, methods_of, settings_of
from asyncrl.core.errors import ConfigError
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.async_trainer import CollectThenTrain
from asyncrl.run.run_config import RunConfig

_OPTIONAL = {"envpool", "mlflow", "minari", "onnx_policy", "trackio", "wandb"}
_GIVEN: dict[type, Any] = {  # classes that have no defaults
    CollectThenTrain: CollectThenTrain(env_steps=10, opt_steps=10),
    EnvConfig: EnvConfig(id="CartPole-v1"),
    RunConfig: RunConfig(env="CartPole-v1"),
}


def settings_classes() -> Iterator[type]:
    """Yield every frozen dataclass of the package that declares the range of a number.

    Those of the command line are checked by what reads it.
    """
    for module in pkgutil.walk_packages(asyncrl.__path__, "asyncrl."):
        if (
            module.name.startswith("asyncrl.cli")
            or module.name.endswith("__main__")
            or module.name.rpartition(".")[2] in _OPTIONAL
        ):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if (
                isinstance(value, type)
                and dataclasses.is_dataclass(value)
                and value.__module__ == module.name
                and any(kind.within for kinds in declared(value).values() for kind in kinds)
            ):
                yield value


def declared(cls: type) -> dict[str, tuple[Kind, ...]]:
    """Return the fields that `check_declared` looks at."""
    kinds = {name: setting.kinds for name, setting in settings_of(cls).items()}
    return {name: some for name, some in kinds.items() if any(kind.is_checked for kind in some)}


def made(cls: type) -> Any:
    return _GIVEN[cls] if cls in _GIVEN else cls()


CLASSES = [cls for cls in settings_classes() if not inspect.isabstract(cls)]
assert len(CLASSES) > 35


def wrong_kinds(members: tuple[Kind, ...]) -> Iterator[object]:
    kinds = {kind.hint for kind in members}
    if int in kinds or float in kinds:
        yield math.nan
    if int in kinds and float not in kinds:
        yield from (64.0, "64", True)
    if any(typing.get_origin(kind) is typing.Literal for kind in kinds):
        yield "offf"
    if tuple[int, ...] in kinds:
        yield from (64, (64, 2.5))
    if all(dataclasses.is_dataclass(kind) or methods_of(kind) for kind in kinds):
        yield from (*kinds, False, None, 1, object())


def outside(members: tuple[Kind, ...]) -> Iterator[object]:
    """Yield what lies just beyond each end of a range; infinity always does."""
    for kind, within in members:
        if within is None or kind not in {int, float, tuple[int, ...]}:
            continue
        low, high = within.ends
        step = 1e-6 if kind is float else 1
        numbers = [
            low if within.interval[0] == "(" else low - step,
            high if within.interval[-1] == ")" else high + step,
        ]
        if kind is float:
            yield from numbers
        else:
            whole = [int(number) for number in numbers if math.isfinite(number)]
            yield from whole if kind is int else ((number,) for number in whole)


def inside(members: tuple[Kind, ...]) -> Iterator[object]:
    """Yield each end that belongs to a range, and 0 where that means something."""
    for kind, within in members:
        if within is not None and kind in {int, float}:
            (low, high), interval = within.ends, within.interval
            ends = [low] * (interval[0] == "[") + [high] * (interval[-1] == "]")
            yield from map(kind, ends + [0] * bool(within.zero))


def refusal(config: Any, name: str, value: object) -> str:
    """Return what is said of a value, and nothing of one that is taken."""
    try:
        dataclasses.replace(config, **{name: value})
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.behaviour(number=11)
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_what_a_field_does_not_declare_is_refused_by_name(cls: type) -> None:
    config = made(cls)
    for name, members in declared(cls).items():
        for wrong in (*wrong_kinds(members), *outside(members)):
            said = refusal(config, name, wrong)
            shown = name.replace("_", "[_-]")
            assert re.search(rf"\b{shown} must .*, got {re.escape(repr(wrong))}", said)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_ends_of_a_range_belong_to_it_if_they_are_said_to(cls: type) -> None:
    config = made(cls)
    for name, members in declared(cls).items():
        for number in inside(members):
            said = refusal(config, name, number)  # another setting may well disagree
            assert not any(f"{name} must {within}," in said for _, within in members)


@pytest.mark.behaviour(number=11)
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_number_has_a_range(cls: type) -> None:
    open_ones = [
        name
        for name, members in declared(cls).items()
        for member in members
        if member.hint in {int, float} and member.within is None
    ]
    assert not open_ones, "declare what these may be, as `Count` or `Positive`"


@pytest.mark.behaviour(number=21)
def test_the_name_of_each_interval_ends_with_its_unit() -> None:
    units = r"_(s|opt_steps|env_steps|episodes)"
    names = {f.name for cls in CLASSES for f in dataclasses.fields(cls) if "interval" in f.name}
    plain = {name for name in names if not re.search(rf"interval{units}$|_per_interval$", name)}
    assert not plain, "say in which unit it counts: interval_s, interval_opt_steps, ..."
    assert len(names) >= 5
