"""Converts configs to plain values and YAML and back, without loss, whatever their settings.

A config is a tree of dataclasses, lists, tuples, dictionaries, enum members, paths and scalars. A
field declared as one dataclass is saved as the fields of that class. If the declaration leaves the
class open (a contract, a union of several), `type: module:Class` precedes them. Functions and
classes are saved as `module:name`. A class with the methods of `SavedItself` says itself how it is
saved. A value that would not be loaded identically is refused when it is saved. Loading imports the
modules that a config names, and so runs them: load only configs that you trust.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import reduce
from pathlib import PurePath
from types import NoneType
from typing import Any, Literal, TypeVar

from asyncrl.core.declared import (
    Hint,
    Kind,
    Setting,
    kinds_of,
    methods_of,
    origin_of,
    settings_of,
    words_of,
)
from asyncrl.core.errors import ConfigError

T = TypeVar("T")
Value = Any  # of a field
_SCALARS = (bool, int, float, str, NoneType)
_YAML_WORDS: dict[bool, set[str]] = {True: {"on", "yes", "true"}, False: {"off", "no", "false"}}


@typing.runtime_checkable
class SavedItself(typing.Protocol):
    """Objects that are no trees of settings, but plain data in a file."""

    def to_data(self) -> Any:
        """Return the data."""
        ...

    @classmethod
    def from_data(cls, data: Any) -> SavedItself:
        """Return what was saved; raise `ConfigError` for other data."""
        ...


def to_plain(config: object) -> dict[str, Any]:
    """Convert a dataclass to nested dictionaries, lists and scalars, in the order of its fields."""
    if not _is_config(config):
        raise ConfigError(f"a config must be an instance of a dataclass, got {_shown(config)}")
    plain = _save_fields(config, "")
    for path, value, back in _differences(config, from_plain(type(config), plain), ""):
        raise ConfigError(
            f"{path}: {_shown(value)} would be loaded as {_shown(back)}; use the declared type, or "
            "declare the field more narrowly"
        )
    return plain


def to_parameters(value: object) -> Any:
    """Convert a dataclass to plain values that describe it, as `to_plain` does.

    An object that cannot be saved is described by its name, so the result is for reading only.
    """
    try:
        return _save(value, set(), "")
    except ConfigError:
        if _is_config(value):
            kind = {"type": f"{type(value).__module__}:{type(value).__qualname__}"}
            return kind | {n: to_parameters(getattr(value, n)) for n in settings_of(type(value))}
        named: Any = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__module__}:{named.__qualname__}"


def from_plain(cls: type[T], data: object) -> T:
    """Build a `cls` from the output of `to_plain`, or from what a person wrote in that form.

    Missing fields keep their defaults. Raises `ConfigError` with the dotted path of the first
    setting that is unknown, missing, of a wrong type or refused by its own class.
    """
    return load(data, cls, "")  # type: ignore[no-any-return]


def load_object(path: str) -> object:
    """Import the object of `module:name`; the name may be dotted. Runs the module."""
    module_name, _, name = path.partition(":")
    if not all(map(str.isidentifier, [*module_name.split("."), *name.split(".")])):
        raise ConfigError(
            f"{path!r} is not an import path; write module:name, as in my_envs:make_env"
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the module raises on import
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise ConfigError(
                f"{path!r}: there is no module {missing!r}; install it, start in the "
                "directory that holds it, or add that directory to PYTHONPATH"
            ) from error
        text = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{path!r}: importing {module_name} failed: {text}") from error
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError as error:
        word = f"{error.name!r}{did_you_mean(error.name, dir(error.obj))}"
        raise ConfigError(f"{path!r}: {module_name} has no {word}") from error


def object_path(value: Value) -> str:
    """Return the `module:name` under which `load_object` finds exactly this function or class."""
    path = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"
    with suppress(ConfigError):
        if load_object(path) is value:
            return path
    raise ConfigError(
        f"{_shown(value)} cannot be saved: it is not a plain value, not a dataclass, and cannot be "
        "imported by name; define it with `def` or `class` at module level"
    )


def plain_default(setting: Setting) -> Any:
    """Return the default of a setting as a file would hold it."""
    return _save(setting.default, set(_leaves(setting.kinds)), setting.name)


def _save(value: Value, declared: set[Hint], path: str) -> Any:
    """Convert a value to plain data; omit a dataclass's `type` only if it is the one declared.

    Saving depends on values, loading on declarations; `to_plain` checks that they agree.
    """
    if isinstance(value, SavedItself):
        return value.to_data()
    for kind, make_plain in _PLAIN.items():
        if isinstance(value, kind):
            return make_plain(value)
    if isinstance(value, list | tuple):
        return [_save(item, declared, _at(path, i)) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_save(k, set(), path): _save(v, declared, _at(path, k)) for k, v in value.items()}
    with located(path):
        if not _is_config(value):
            return object_path(value)
        tag = {} if declared == {type(value)} else {"type": object_path(type(value))}
    return tag | _save_fields(value, path)


def _save_fields(config: Value, path: str) -> dict[str, Any]:
    return {
        name: _save(getattr(config, name), set(_leaves(setting.kinds)), _at(path, name))
        for name, setting in settings_of(type(config)).items()
    }


def _leaves(kinds: Iterable[Kind]) -> Iterator[Hint]:
    """Yield the types declared inside containers and unions, without scalars."""
    for hint, _ in kinds:
        if origin_of(hint) in _CONTAINERS:
            for argument in typing.get_args(hint):
                yield from _leaves(kinds_of(argument))
        elif hint not in {*_SCALARS, *_CONTAINERS, ...}:
            yield origin_of(hint) or hint


def _differences(a: Value, b: Value, path: str) -> Iterator[tuple[str, Value, Value]]:
    if _is_config(a) and type(a) is type(b):
        for name in settings_of(type(a)):
            yield from _differences(getattr(a, name), getattr(b, name), _at(path, name))
    elif a != b:
        yield path, a, b


def load_as(data: Value, hint: Hint, path: str) -> Any:
    """Return data as the declared type; as it is if files cannot hold objects of that type."""
    kinds = set(_leaves(kinds_of(hint)))
    return load(data, hint if all(map(_is_in_files, kinds)) else Any, path)


def _is_in_files(kind: Hint) -> bool:
    if not isinstance(kind, type):
        return kind in _LOADERS or kind is Callable
    is_plain = dataclasses.is_dataclass(kind) or issubclass(kind, (Enum, PurePath, SavedItself))
    return is_plain or kind in {*_LOADERS, Callable, type} or getattr(kind, "_is_protocol", False)


def load(data: Value, hint: Hint, path: str) -> Any:
    """Return plain data as the declared type; errors name `path`."""
    return load_one_of(kinds_of(hint), data, path)


def load_one_of(kinds: Sequence[Kind], data: Value, path: str) -> Any:
    """Return plain data as the first of these kinds that it fits; errors name `path`."""
    if len(kinds) == 1:
        return _load_kind(data, kinds[0].hint, path)
    expected = words_of(kinds)
    is_open = isinstance(data, Mapping) and "type" not in data
    if is_open and sum(dataclasses.is_dataclass(kind.hint) for kind in kinds) > 1:
        raise _Misfit(path, data, f"{expected}, and a line `type: module:Class` that says which")
    inner: list[ConfigError] = []
    # float accepts whole numbers and text, too, so it is tried last; but a float stays a float.
    is_float = isinstance(data, float)
    for kind in sorted(kinds, key=lambda kind: (kind.hint is float) != is_float):
        try:
            return _load_kind(data, kind.hint, path)
        except ConfigError as error:
            if not isinstance(error, _Misfit) or error.path != path:
                inner.append(error)
    raise inner[0] if inner else _Misfit(path, data, expected)


def _load_kind(data: Value, hint: Hint, path: str) -> Any:
    kind = origin_of(hint) or hint
    if kind in _LOADERS:
        return _LOADERS[kind](data, hint, path)
    if isinstance(kind, type) and issubclass(kind, SavedItself):
        with located(path):
            return kind.from_data(data)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _load_settings(data, kind, path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind[_choice(data, list(kind.__members__), path)]
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return kind(_load_scalar(data, str, path))
    return _load_open(data, hint, path)


def _load_scalar(data: Value, hint: Hint, path: str) -> Any:
    if hint is float:
        if (number := _as_float(data)) is not None:
            return number
    elif isinstance(data, hint) and (hint is bool or not isinstance(data, bool)):
        return data
    elif hint is int and isinstance(data, str) and "e" in data.lower():
        with suppress(ValueError):  # YAML reads 1e6 as text
            return as_whole(data)
    elif hint is int and isinstance(data, float) and data.is_integer():
        return int(data)  # YAML reads 1.0e+6 as a float
    words = words_of(kinds_of(hint))
    if isinstance(data, bool) and hint is str:
        words += " (to YAML, off, no, on and yes are true or false unless in quotes)"
    raise _Misfit(path, data, words + " other than nan" * (hint is type(data)))


def as_whole(text: str) -> int:
    """Parse a whole number, such as 1e6; raise `ValueError` if it is not one."""
    with suppress(ValueError):
        return int(text)
    if not (number := float(text)).is_integer():
        raise ValueError(f"expected a whole number, got {text}")
    return int(number)


def _as_float(data: Value) -> float | None:
    # YAML reads 1e-4, without a decimal point, as text.
    is_text = isinstance(data, str) and data[:1] in "+-.0123456789"
    if is_text or (isinstance(data, int | float) and not isinstance(data, bool)):
        with suppress(ValueError, OverflowError):
            return None if math.isnan(number := float(data)) else number
    return None


def _choice(data: Value, options: Sequence[Any], path: str) -> Any:
    if same := [o for o in options if data == o and type(data) is type(o)]:
        return same[0]
    words = _YAML_WORDS[data] if isinstance(data, bool) else set()
    meant = [option for option in options if str(option).lower() in words]
    if len(meant) == 1:
        return meant[0]
    raise _Misfit(
        path, data, f"one of {', '.join(map(repr, options))}{did_you_mean(data, options)}"
    )


def _load_sequence(data: Value, hint: Hint, path: str) -> Any:
    kind = origin_of(hint) or hint
    if not isinstance(data, list | tuple):
        raise _Misfit(path, data, "a list")
    hints = typing.get_args(hint) or (Any,)
    if kind is not tuple or hints[-1] is ...:
        hints = hints[:1] * len(data)
    if len(hints) != len(data):
        raise _Misfit(path, data, f"{len(hints)} values")
    loaded = (load(item, hints[i], _at(path, i)) for i, item in enumerate(data))
    return list(loaded) if kind is list else tuple(loaded)


def _load_mapping(data: Value, hint: Hint, path: str) -> Any:
    if not isinstance(data, Mapping):
        raise _Misfit(path, data, "a mapping")
    key_hint, item_hint = typing.get_args(hint) or (str, Any)
    return {
        load(key, key_hint, path): load(item, item_hint, _at(path, key))
        for key, item in data.items()
    }


def _load_any(data: Value, hint: Hint, path: str) -> Any:
    if isinstance(data, list):
        return _load_sequence(data, list, path)
    if isinstance(data, Mapping):
        # Other texts are an environment's own: `{"observation": {"type": "Kinematics"}}`.
        names_class = ":" in str(data.get("type"))
        return (_load_open if names_class else _load_mapping)(data, hint, path)
    if type(data) in _SCALARS:
        return _load_scalar(data, type(data), path)
    raise _Misfit(path, data, "a plain value")


def _load_settings(data: Value, cls: Any, path: str) -> Any:
    if isinstance(data, str) and hasattr(cls, "parse"):
        with located(path):
            return cls.parse(data)
    if not isinstance(data, Mapping):
        raise _Misfit(path, data, f"the settings of {cls.__name__}")
    known = settings_of(cls)
    if "type" in data and "type" not in known:
        return _load_open(data, cls, path)
    for key in data:
        if key not in known:
            advice = did_you_mean(key, known) or f"; it has {', '.join(known) or 'none'}"
            raise ConfigError(f"{_at(path, key)}: {cls.__name__} has no such setting{advice}")
    values = {k: load_one_of(known[k].kinds, item, _at(path, k)) for k, item in data.items()}
    with located(path):
        return cls(**values)


def _load_open(data: Value, hint: Hint, path: str) -> Any:
    """Load what is given by name: a dataclass with its settings, a function or a class."""
    kind, words = origin_of(hint) or hint, words_of(kinds_of(hint))
    named = kind in {Callable, type} or "__call__" in getattr(kind, "__dict__", ())
    if isinstance(data, Mapping) and isinstance(data.get("type"), str):
        with located(_at(path, "type")):
            cls = load_object(data["type"])
        if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
            raise ConfigError(f"{_at(path, 'type')}: {data['type']!r} is not a dataclass")
        loaded = _load_settings({k: v for k, v in data.items() if k != "type"}, cls, path)
    elif isinstance(data, str) and named:
        with located(path):
            loaded = load_object(data)
    else:
        wanted = "module:name, or " if named else ""
        raise _Misfit(path, data, f"{words} ({wanted}settings with `type: module:Class`)")
    if getattr(kind, "_is_protocol", False):
        if lacking := sorted(name for name in methods_of(kind) if not hasattr(loaded, name)):
            raise _Misfit(path, loaded, f"{words}, which has {', '.join(lacking)}")
    elif isinstance(kind, type) and not isinstance(loaded, kind):
        raise _Misfit(path, loaded, words)
    return loaded


class _Misfit(ConfigError):
    """A value is not of the declared kind, as opposed to an error inside a value."""

    def __init__(self, path: str, value: Value, expected: str) -> None:
        super().__init__(f"{path or 'the config'}: expected {expected}, got {_shown(value)}")
        self.path = path


@contextmanager
def located(path: str) -> Iterator[None]:
    """Prefix the errors that a class raises about its settings with their path."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}" if path else str(error)) from error


def _is_config(value: Value) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _at(path: str, key: object) -> str:
    return f"{path}.{key}".removeprefix(".")


def _shown(value: Value) -> str:
    kind = "" if isinstance(value, str) else f" ({type(value).__name__})"
    return f"{value!r:.80}{kind}"


def has_methods(part: object, *names: str) -> bool:
    """Whether this is an object, not a class, with all of these methods."""
    return not isinstance(part, type) and all(callable(getattr(part, n, None)) for n in names)


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """Return the end of a message about an unknown word: the similar known ones."""
    matches = difflib.get_close_matches(str(word), map(str, known), n=3)
    return f"; did you mean {' or '.join(matches)}?" if matches else ""


_CONTAINERS = {list, tuple, dict, Sequence, Mapping}
_PLAIN: dict[type, Callable[[Any], Any]] = {
    Enum: lambda member: member.name,
    PurePath: str,
    NoneType: lambda none: none,
    **{scalar: scalar for scalar in (bool, int, float, str)},
}
_LOADERS: dict[Hint, Callable[[Value, Hint, str], Any]] = {
    **dict.fromkeys(_SCALARS, _load_scalar),
    **dict.fromkeys((list, tuple, Sequence), _load_sequence),
    **dict.fromkeys((dict, Mapping), _load_mapping),
    **dict.fromkeys((Any, object), _load_any),
    Literal: lambda data, hint, path: _choice(data, typing.get_args(hint), path),
}


def flatten(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the leaves of nested mappings with their names joined by dots."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value
