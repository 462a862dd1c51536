"""Reads command lines into plain data, and formats help, by what dataclasses declare.

A flag is the dotted path of a setting: `trainer.batch_size` of a file is `--trainer.batch-size`.
Does not know what settings mean.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import shlex
import shutil
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import PurePath
from textwrap import fill
from types import NoneType
from typing import Any, Literal, TypeVar

from asyncrl.cli.output import show
from asyncrl.core.declared import Hint, Kind, Setting, kinds_of, origin_of, settings_of
from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import (
    as_whole,
    from_plain,
    load_object,
    load_one_of,
    object_path,
    plain_default,
)

T = TypeVar("T")
Data = Any  # plain: what a file holds

HELP = {"-h", "--help", "--help-all"}
_NARROWEST, _WIDEST = 40, 100
_INDENT = "      "
_NONE: Mapping[str, Data] = {}

POSITIONAL = object()
"""Marks the field that takes the words which belong to no flag."""


@dataclass(frozen=True, slots=True)
class Alias:
    """Marks a field that has a short flag too."""

    flag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A setting that the command line can set."""

    path: str
    """Its dotted name in a file."""

    setting: Setting
    default: Data = None
    group: str = ""
    """What is said of the group of settings that it is in."""

    classes: Mapping[str, type] = field(default_factory=dict)
    """Of a group of settings that may be of several classes: the word for each of them."""

    chosen: str = ""
    """The word for the class of the default."""

    @property
    def is_positional(self) -> bool:
        """Whether it takes words that belong to no flag."""
        return POSITIONAL in self.setting.marks

    @property
    def name(self) -> str:
        """The flag as it is shown, or the word for a positional argument."""
        if not self.is_positional:
            return flag_of(self.path)
        several = self.contains is not None
        return f"{self.path.upper().removesuffix('S')} ..." if several else self.path.upper()

    @property
    def aliases(self) -> list[str]:
        """Its short forms."""
        return [mark.flag for mark in self.setting.marks if isinstance(mark, Alias)]

    @property
    def no(self) -> str:
        """The flag that says no; "" if its setting is more than true or false."""
        if {kind.hint for kind in self.setting.kinds} != {bool}:
            return ""
        group, dot, name = self.path.rpartition(".")
        return flag_of(f"{group}{dot}no_{name}")

    @property
    def contains(self) -> Sequence[Kind] | None:
        """The kinds of values of which it takes any number; None if it takes one."""
        for hint, _ in self.setting.kinds:
            if origin_of(hint) in _SEVERAL:
                inner = typing.get_args(hint)
                return kinds_of(inner[1] if origin_of(hint) in _NAMED else inner[0])
        return None

    @property
    def usage(self) -> str:
        """How its value is written; "" if only a file can hold it."""
        if self.classes:
            return "|".join(self.classes)
        words = list(filter(None, map(_usage, self.setting.kinds)))
        return "|".join(dict.fromkeys(words)) if set(words) != {"None"} else ""

    @property
    def words(self) -> list[str]:
        """The words that set its default."""
        default = self.default
        if self.classes:
            return [self.chosen]
        if isinstance(default, Mapping) and self.contains is not None:
            return [str(word) for pair in default.items() for word in pair]
        if isinstance(default, Mapping):
            return [str(load_one_of(self.setting.kinds, default, self.name))]
        return list(map(str, default)) if isinstance(default, list) else [str(default)]

    def taken(self, words: list[str]) -> tuple[list[str], list[str]]:
        """Return those of the words after it that are its own, and the others."""
        most = 1 if self.contains is None else len(words)
        return words[:most], words[most:]

    def read(self, words: Sequence[str]) -> Data:
        """Return the words after the flag as a file would hold them; refuse what does not fit."""
        try:
            data = self._read(words)
            value = load_one_of(self.setting.kinds, data, self.name)
            if self.setting.is_checked:
                self.setting.check(value, self.name)
        except ConfigError as error:
            if "." in self.path:
                error.add_note(f"asyncrl: in a file: {self.path}")
            raise
        return data

    def _read(self, words: Sequence[str]) -> Data:
        inner = self.contains
        if self.classes:
            return self._read_class(words)
        if inner is None or [*words] == ["None"]:
            if not words:
                raise ConfigError(f"{self.name} needs a value: {self.usage}")
            return _read_word(words[0], self.setting.kinds)
        if not any(origin_of(kind.hint) in _NAMED for kind in self.setting.kinds):
            return [_read_word(word, inner) for word in words]
        if len(words) % 2:
            given = shlex.join(words)
            raise ConfigError(f"{self.name} takes pairs of a name and a value, got {given}")
        pairs = zip(words[::2], words[1::2], strict=True)
        return {name: _read_word(word, inner) for name, word in pairs}

    def _read_class(self, words: Sequence[str]) -> Data:
        word = words[0] if words else ""
        if word not in self.classes:
            raise ConfigError(f"{self.name} must be one of {self.usage}, got {word!r}")
        cls = self.classes[word]
        if word == self.chosen:
            return self.default
        return None if cls is NoneType else {"type": object_path(cls)}


def flag_of(path: str) -> str:
    """Return the flag of a setting; `lambda_` keeps its end."""
    return "--" + re.sub(r"(?<=\w)_(?=\w)", "-", path)


_NAMED = {dict, Mapping}
_SEVERAL = {list, tuple, Sequence, *_NAMED}
_USAGE: Mapping[Hint, str] = {
    int: "INT",
    float: "FLOAT",
    str: "TEXT",
    bool: "True|False",
    Any: "TEXT",
    NoneType: "None",
}


def _usage(kind: Kind) -> str:
    hint = kind.hint
    origin, inner = origin_of(hint), typing.get_args(hint)
    if origin is Literal:
        return "|".join(map(str, inner))
    if origin in _NAMED:
        return (
            "[NAME VALUE ...]" if inner[0] is str and any(map(_usage, kinds_of(inner[1]))) else ""
        )
    if origin in _SEVERAL:
        words = "|".join(filter(None, map(_usage, kinds_of(inner[0]))))
        return words and f"[{words} ...]"
    if isinstance(hint, type) and issubclass(hint, PurePath):
        return "PATH"
    if hint in _USAGE:
        return _USAGE[hint]
    return str(hint.form) if _is_one_word(hint) else ""


def _read_word(word: str, kinds: Sequence[Kind]) -> Data:
    """Return the plain value that a word means, if it means one of these kinds, or the word."""
    hints = {kind.hint for kind in kinds}
    if word == "None" and NoneType in hints:
        return None
    if word.lower() in {"true", "false"} and hints & {bool, Any}:
        return word.lower() == "true"
    for read, meant in ((int, {int, Any}), (float, {float, Any}), (as_whole, {int})):
        with suppress(ValueError):
            if hints & meant:
                return read(word)
    return word


# --- the flags of a class -------------------------------------------------------------------------


def flags_in(cls: type, plain: Mapping[str, Data], path: str = "", group: str = "") -> list[Flag]:
    """Return the flags of a dataclass, those of its groups last; `plain` holds their defaults."""
    own: list[Flag] = []
    inner: list[Flag] = []
    for name, setting in settings_of(cls).items():
        at = f"{path}.{name}".removeprefix(".")
        default = plain[name] if name in plain else plain_default(setting)
        options = {_word_for(kind.hint): kind.hint for kind in setting.kinds if _is_choice(kind)}
        classes = [one for one in options.values() if one is not NoneType]
        found = _class_of(default, classes)
        if found is not None:
            inner += flags_in(found, default, at, f"{at}: {setting.text.partition('.')[0]}.")
        flag = Flag(path=at, setting=setting, default=default, group=group)
        chosen = [word for word, one in options.items() if one is (found or NoneType)]
        if classes and len(options) > 1 and chosen:
            own.append(replace(flag, classes=options, chosen=chosen[0]))
        elif found is None and flag.usage:
            own.append(flag)
    return own + inner


def _is_group(hint: Hint) -> bool:
    """Whether values of a kind are groups of settings."""
    return dataclasses.is_dataclass(hint) and not hasattr(hint, "parse")


def _is_one_word(hint: Hint) -> bool:
    """Whether values of a kind are groups of settings that a flag takes as one word."""
    return hasattr(hint, "parse") and hasattr(hint, "form")


def _class_of(default: Data, classes: Sequence[type]) -> type | None:
    """Return the class of a group of settings by what a file holds; None for other values."""
    if not isinstance(default, Mapping):
        return None
    if not isinstance(default.get("type"), str):
        return classes[0] if len(classes) == 1 else None
    with suppress(ConfigError):  # reported when it is loaded
        found = load_object(default["type"])
        return found if isinstance(found, type) and _is_group(found) else None
    return None


def _is_choice(kind: Kind) -> bool:
    return _is_group(kind.hint) or kind.hint is NoneType


def _word_for(cls: type) -> str:
    if cls is NoneType:
        return "None"
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()


# --- a command line -------------------------------------------------------------------------------

_FLAG = re.compile(r"--?[a-zA-Z]")
_ALIKE, _SUGGESTED = 0.8, 3
"""Similarity above which flags are suggested for an unknown one, and their maximum number."""


def matched(
    words: Sequence[str], flags: Sequence[Flag]
) -> tuple[list[tuple[Flag, list[str]]], list[str]]:
    """Return the flags of a command line with their words, and what belongs to no flag."""
    known = {key_of(name): flag for flag in flags for name in (flag.path, flag.no, *flag.aliases)}
    found: list[tuple[Flag, list[str]]] = []
    unknown: list[str] = []
    rest, *given = split(words)
    for word, *values in given:
        name, equals, joined = word.partition("=")
        flag = known.get(key_of(name))
        if flag is None:
            unknown.append(word)
            continue
        if flag.no and not equals:
            joined = str(key_of(name) == key_of(flag.path))
        own, others = ([joined], values) if joined or equals else flag.taken(values)
        found.append((flag, own))
        rest += others
    for flag in flags:
        if flag.is_positional and rest:
            own, rest = flag.taken(rest)
            found.append((flag, own))
    return found, unknown + rest


def split(words: Sequence[str]) -> list[list[str]]:
    """Return the words before the first flag, and then each flag with the words that follow it."""
    parts: list[list[str]] = [[]]
    for word in words:
        if _FLAG.match(word):
            parts.append([])
        parts[-1].append(word)
    return parts


def key_of(name: str) -> str:
    """Return the path of a flag, however it is written."""
    return name.partition("=")[0].lstrip("-").replace("-", "_").rstrip("_")


def read(
    words: Sequence[str],
    flags: Sequence[Flag],
    prog: str,
    lists: str = "--help",
    other_names: Mapping[str, str] | None = None,
) -> dict[str, Data]:
    """Return what a command line sets, by path, as a file would hold it.

    Raises `ConfigError` for unknown flags, with near ones, for stray words, and for values that
    settings cannot have. `lists` is the flag that shows all flags; `other_names` are ends of paths
    that other libraries call otherwise.
    """
    found, rest = matched(words, flags)
    if rest:
        what = f"argument {rest[0]!r}"
        if unknown := dict.fromkeys(word.partition("=")[0] for word in rest if _FLAG.match(word)):
            said = ", ".join(one + _near(one, flags, other_names or {}) for one in unknown)
            what = f"flag{'s' * (len(unknown) > 1)} {said}"
        raise ConfigError(f"unknown {what}; {prog} {lists} shows all flags")
    return {flag.path: flag.read(values) for flag, values in found}


def _near(word: str, flags: Sequence[Flag], other_names: Mapping[str, str]) -> str:
    """Return a question that names the flags that may be meant; "" if none is near."""
    asked = key_of(word)
    last = asked.rpartition(".")[2]
    end = other_names.get(asked) or other_names.get(last)
    names = [flag.path for flag in flags if not flag.is_positional]
    near = [name for name in names if end and name.endswith(end)]
    near = near or [name for name in names if _alike(last, name.rpartition(".")[2]) >= _ALIKE]
    near.sort(key=lambda name: -_alike(asked, name))
    meant = " or ".join(map(flag_of, near[:_SUGGESTED]))
    return f" (did you mean {meant}?)" if meant else ""


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def laid(plain: Mapping[str, Data], values: Mapping[str, Data]) -> dict[str, Data]:
    """Return plain data with these values, by path, in place of what it holds."""
    made = dict(plain)
    for path in sorted(values):  # a group before what is in it
        *groups, name = path.split(".")
        inner = made
        for group in groups:
            inner[group] = dict(inner.get(group) or {})
            inner = inner[group]
        inner[name] = values[path]
    return made


def parsed(form: type[T], prog: str, args: Sequence[str], plain: Mapping[str, Data] = _NONE) -> T:
    """Return the dataclass that a command line describes; exit after printing help.

    `plain` holds other defaults than those of the class.
    """
    flags = flags_in(form, plain)
    if HELP & set(args):
        show(help_of(flags, prog, form.__doc__ or ""))
        raise SystemExit(0)
    values = read(args, flags, prog)
    for flag in flags:
        if flag.setting.is_required and flag.path not in values:
            text = flag.setting.text.partition(".")[0]
            raise ConfigError(f"{flag.name.split()[0]} is missing: {text}; see {prog} --help")
    return from_plain(form, laid(plain, values))


# --- help -----------------------------------------------------------------------------------------

_fill = partial(fill, break_on_hyphens=False)


def help_of(flags: Sequence[Flag], prog: str, about: str) -> str:
    """Return the help of a command with these flags, as wide as the terminal."""
    width = min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)
    places = [flag for flag in flags if flag.is_positional]
    words = [flag.name if flag.setting.is_required else f"[{flag.name}]" for flag in places]
    blocks = [f"usage: {' '.join([prog, *words, '[OPTIONS]'])}"]
    blocks += [_fill(part, width) for part in inspect.cleandoc(about).split("\n\n")]
    for group, members in groupby(flags, key=lambda flag: flag.group):
        title = _fill(group or "options:", width)
        blocks.append("\n".join([title, *(_entry(flag, width) for flag in members)]))
    return "\n\n".join(blocks)


def _entry(flag: Flag, width: int) -> str:
    names = ", ".join(filter(None, [*flag.aliases, flag.name, flag.no]))
    usage = "" if flag.no or flag.is_positional else f" {flag.usage}"
    head = _fill(f"  {names}{usage}", width, subsequent_indent=_INDENT)
    default = "required" if flag.setting.is_required else f"default: {shlex.join(flag.words)}"
    *first, last = flag.setting.text.split("\n\n")
    parts = [*first, f"{last} ({default})" if flag.words else last]
    text = (_fill(part, width, initial_indent=_INDENT, subsequent_indent=_INDENT) for part in parts)
    return "\n".join([head, *text])
