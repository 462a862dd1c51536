"""Configs come back identical, and what is wrong with one is said by path, value and remedy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NewType, Protocol

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.errors import ConfigError
from asyncrl.core.named import Named
from asyncrl.core.settings import from_plain, load_object, to_parameters, to_plain
from asyncrl.learner.stop_conditions import AllOf, MaxEnvSteps, ReachesUpperBound, StopCondition
from asyncrl.run.run_config import RunConfig
from asyncrl.run.yaml_file import load_yaml, save_yaml
from tests.support.scale import examples

Width = NewType("Width", int)


class Color(Enum):
    RED = 1
    OFF = 2


class Shape(Protocol):
    """A contract, as `AgentConfig` is one."""

    def area(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    side: float = 1.0

    def area(self) -> float:
        return self.side**2

    def __post_init__(self) -> None:
        if self.side <= 0:
            raise ConfigError(f"side must be positive, got {self.side}")


@dataclass(frozen=True)
class Tile(Square):
    glazed: bool = False


@dataclass(frozen=True)
class Circle:
    radius: float = 1.0

    def area(self) -> float:
        return math.pi * self.radius**2

    def __call__(self) -> str:
        return "round"


@dataclass(frozen=True)
class NoShape:
    size: int = 1


def make_it() -> str:
    return "made"


@dataclass(frozen=True, kw_only=True)
class Everything:
    flag: bool = False
    count: int = 1
    width: Width = Width(3)
    rate: float = 0.5
    name: str = "x"
    maybe: float | None = None
    where: Literal["background", "inline", "off"] = "background"
    color: Color = Color.RED
    path: Path | None = None
    hidden: tuple[int, ...] = (64, 64)
    pair: tuple[str, float] = ("a", 1.0)
    betas: list[float] = field(default_factory=list)
    names: Sequence[str] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    nested: dict[str, Square] = field(default_factory=dict)
    square: Square = field(default_factory=Square)
    other: Square | Circle | None = None
    just_one: Square | None = None
    shape: Shape = field(default_factory=Square)
    number: int | float | str = 0
    make: Callable[[], str] = make_it
    cls: type[Any] = Circle
    stop: StopCondition | None = None
    named: Named | None = None
    several: tuple[Named, ...] = ()
    derived: int = field(default=7, init=False)


text = st.text(max_size=12) | st.sampled_from(
    ["1e-4", "1.5", "off", "null", "~", "", "0o7", "1:30", "2020-01-01", "a: b", "\x85", "\r\n"]
)
floats = st.floats(allow_nan=False)
squares = st.builds(Square, side=st.floats(0.1, 10))
tiles = st.builds(Tile, side=st.floats(0.1, 10), glazed=st.booleans())
circles = st.builds(Circle, radius=floats)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | text,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(text.filter(lambda key: key != "type"), inner, max_size=3)
    ),
    max_leaves=6,
)
stops = st.recursive(
    st.builds(MaxEnvSteps, st.integers(1, 99)) | st.builds(ReachesUpperBound, st.just("r"), floats),
    lambda inner: st.builds(AllOf, inner, inner),
    max_leaves=4,
)
named = st.builds(
    Named,
    st.sampled_from(["a:b", "a.b:C.d"]),
    st.dictionaries(text.filter(lambda key: key != "type"), plain, max_size=3),
)
everything = st.builds(
    Everything,
    flag=st.booleans(),
    count=st.integers(),
    rate=floats,
    name=text,
    maybe=st.none() | floats,
    where=st.sampled_from(["background", "inline", "off"]),
    color=st.sampled_from(Color),
    path=st.none() | st.just(Path("runs/x")),
    hidden=st.lists(st.integers(), max_size=3).map(tuple),
    pair=st.tuples(text, floats),
    betas=st.lists(floats, max_size=3),
    names=st.lists(text, max_size=3).map(tuple),
    kwargs=st.dictionaries(text.filter(lambda key: key != "type"), plain, max_size=3),
    nested=st.dictionaries(text, squares | tiles, max_size=2),
    square=squares | tiles,
    other=st.none() | squares | tiles | circles,
    just_one=st.none() | squares | tiles,
    shape=squares | tiles | circles,
    number=st.integers() | floats | text,
    make=st.just(make_it) | circles,
    cls=st.sampled_from([Circle, Square]),
    stop=st.none() | stops,
    named=st.none() | named,
    several=st.lists(named, max_size=2).map(tuple),
)


def types_in(value: Any) -> Any:
    """The types of a tree, which `==` does not compare: 1 == 1.0 == True."""
    if isinstance(value, list | tuple):
        return type(value), [types_in(item) for item in value]
    if isinstance(value, dict):
        return {key: types_in(item) for key, item in value.items()}
    return type(value)


@pytest.mark.behaviour(number=10)
@settings(max_examples=examples(150, usual=20), deadline=None)
@given(config=everything)
def test_a_config_comes_back_from_its_file_identical(
    tmp_path_factory: pytest.TempPathFactory, config: Everything
) -> None:
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    save_yaml(config, path)
    back = load_yaml(Everything, path)
    assert back == config
    for name in Everything.__dataclass_fields__:
        assert types_in(getattr(back, name)) == types_in(getattr(config, name)), name


def test_only_open_declarations_are_tagged() -> None:
    data = to_plain(
        Everything(other=Circle(), just_one=Square(), square=Tile(), nested={"a": Square()})
    )
    assert data["other"] == {"type": f"{__name__}:Circle", "radius": 1.0}
    assert data["shape"] == {"type": f"{__name__}:Square", "side": 1.0}
    assert data["square"]["type"] == f"{__name__}:Tile"
    assert data["just_one"] == {"side": 1.0}
    assert data["nested"] == {"a": {"side": 1.0}}
    assert data["make"] == f"{__name__}:make_it"
    assert "derived" not in data


def test_what_people_write_in_yaml_is_understood() -> None:
    written = yaml.safe_load("{rate: 1e-4, maybe: 3, where: off, color: off, betas: [1, .inf]}")
    assert written["where"] is False, "YAML 1.1; the reason for this test"
    config = from_plain(Everything, written)
    assert (config.rate, config.where, config.color) == (1e-4, "off", Color.OFF)
    assert config.betas == [1.0, math.inf]
    assert all(type(value) is float for value in (config.maybe, *config.betas))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"cuont": 1}, "^cuont: Everything has no such setting; did you mean count"),
        ({"flag": 1}, r"^flag: expected true or false, got 1 \(int\)"),
        ({"rate": "fast"}, r"^rate: expected a number, got 'fast'"),
        ({"rate": math.nan}, "^rate: expected a number other than nan, got nan"),
        ({"rate": 10**400}, "^rate: expected a number, got 1000"),
        ({"where": "inlien"}, "^where: expected one of 'background', .*did you mean inline"),
        ({"color": "BLUE"}, "^color: expected one of 'RED', 'OFF', got 'BLUE'"),
        ({"hidden": [64, "x"]}, r"^hidden.1: expected a whole number, got 'x'"),
        ({"square": {"side": -1}}, "^square: side must be positive, got -1.0"),
        ({"other": {"type": "nowhere:X"}}, "^other.type: 'nowhere:X': there is no module"),
        ({"shape": {"side": 1.0}}, "^shape: expected a Shape .*type: module:Class"),
        ({"shape": {"type": f"{__name__}:NoShape"}}, "^shape: expected a Shape, which has area"),
        ({"square": {"type": f"{__name__}:Circle"}}, "^square: expected a Square, got Circle"),
        ({"make": 3}, r"^make: expected .*Callable.* \(module:name, or settings"),
        ({"name": False}, r"^name: expected text \(to YAML, off, no, .* got False \(bool\)"),
        ({"hidden": 64}, r"^hidden: expected a list, got 64 \(int\)"),
        ({"pair": ["a"]}, "^pair: expected 2 values, got "),
        ({"kwargs": [1]}, "^kwargs: expected a mapping, got "),
        ({"kwargs": {"a": object()}}, "^kwargs.a: expected a plain value"),
        ({"other": {"side": 2.0}}, "^other: expected a Square, a Circle or None, and a line"),
        ({"shape": {"type": f"{__name__}:make_it"}}, "^shape.type: .*make_it' is not a dataclass"),
        ([], "^the config: expected the settings of Everything, got "),
    ],
)
def test_a_wrong_setting_is_named(data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_plain(Everything, data)


@dataclass
class Picky:
    value: int = 0

    def __post_init__(self) -> None:
        if self.value:
            raise ValueError("zero or nothing")


def test_a_class_of_the_users_own_may_refuse_with_any_value_error() -> None:
    with pytest.raises(ConfigError, match="zero or nothing") as caught:
        from_plain(Picky, {"value": 1})
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"make": lambda: "x"}, r"^make: .*lambda.* cannot be saved: .*at module level"),
        ({"kwargs": {"a": np.zeros(2)}}, "^kwargs.a: .*ndarray.* cannot be saved"),
        ({"kwargs": {"a": (1, 2)}}, r"^kwargs: .*\(1, 2\).* would be loaded as .*\[1, 2\]"),
        ({"shape": NoShape()}, "^shape: expected a Shape, which has area"),
    ],
)
def test_what_would_not_come_back_is_refused_when_saved(change: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        to_plain(Everything(**change))


def test_a_mapping_may_have_a_type_that_is_no_import_path() -> None:
    """Some environments take such mappings: highway-env selects its observations by them."""
    config = Everything(kwargs={"config": {"observation": {"type": "Kinematics"}, "type": 3}})
    assert from_plain(Everything, to_plain(config)) == config


def test_errors_of_a_file_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    with pytest.raises(ConfigError, match=r"cannot load .*config.yaml: .*No such file"):
        load_yaml(Everything, path)
    path.write_text("count: 1\nrate: [1, 2\n")
    with pytest.raises(ConfigError, match=r"(?s)cannot load .*config.yaml: .*line 3"):
        load_yaml(Everything, path)
    path.write_text("# nothing yet\n")
    assert load_yaml(Everything, path) == Everything(), "what is not named keeps its default"
    path.write_text("square: {side: 0}")
    with pytest.raises(ConfigError, match=r"cannot load .*config.yaml: square: side must be"):
        load_yaml(Everything, path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("math.sqrt", "'math.sqrt' is not an import path; write module:name"),
        ("mathh:sqrt", "no module 'mathh'; install it, start in the"),
        ("math:sqrtt", "math has no 'sqrtt'; did you mean sqrt"),
    ],
)
def test_load_object_says_what_is_missing(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_object(path)


def test_load_object_shows_what_the_users_module_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_another_module.py").write_text("import not_installed_at_all")
    (tmp_path / "fails_to_run.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match=r"importing needs_another_module failed.*not_installed"):
        load_object("needs_another_module:x")
    with pytest.raises(ConfigError, match="importing fails_to_run failed: ZeroDivisionError"):
        load_object("fails_to_run:x")


def test_whole_number_may_have_an_exponent(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for text in ("1e5", "1.0e+5", "100000.0"):
        path.write_text(f"max_env_steps: {text}")
        steps = load_yaml(RunConfig, path).max_env_steps
        assert (steps, type(steps)) == (100_000, int)
    for text in ("15e-1", "1.5", "1.5e+0", ".inf", ".nan"):
        path.write_text(f"max_env_steps: {text}")
        with pytest.raises(ConfigError, match="max_env_steps: expected a whole number"):
            load_yaml(RunConfig, path)


def test_a_whole_float_stays_a_float_where_both_are_declared() -> None:
    @dataclass
    class Both:
        number: int | float = 0
        kwargs: Mapping[str, bool | int | float | str] = field(default_factory=dict)

    loaded = from_plain(Both, {"number": 2.0, "kwargs": {"a": 2.0, "b": 2}})
    assert repr(loaded.number) == "2.0"
    assert repr(loaded.kwargs) == "{'a': 2.0, 'b': 2}"


def test_parameters_name_what_cannot_be_saved() -> None:
    @dataclass(frozen=True)
    class Local:
        make: Callable[[], int] = lambda: 3
        tile: Tile = field(default_factory=Tile)

    described = to_parameters(Local())
    assert described["make"].endswith("Local.<lambda>")
    assert described["tile"]["side"] == 1.0
    assert to_parameters(object()) == "builtins:object"
