"""Adds the names of flags to errors about settings, which name fields as Python code does.

Also suggests flags for unknown ones, such as names from other libraries.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from asyncrl.agents.parts.schedules import Schedule
from asyncrl.core.declared import Hint, settings_of
from asyncrl.core.errors import ConfigError
from asyncrl.core.named import Named
from asyncrl.core.settings import as_whole
from asyncrl.training.run_config import RunConfig
from asyncrl.training.yaml_file import ALSO_CALLED
from asyncrl.transport.zeromq_socket import advertised, tcp_address

T = TypeVar("T")

_RUN = RunConfig()
_GROUPS = [
    f.name for f in dataclasses.fields(_RUN) if dataclasses.is_dataclass(getattr(_RUN, f.name))
]
"""First part of the names of a run's settings, in errors and in flags."""

_NO_FLAGS = (".network", "_network")
"""Suffixes of settings that no flag can set."""

_SETTING = re.compile(rf"(?<![\w.\-/])({'|'.join(_GROUPS)})((?:\.[a-z][a-z0-9_]*)+)\b(?![(:/])")
_FLAG = re.compile(r"--?[a-zA-Z]")
_OTHER_NAMES = {
    "-f": "config",
    "buffer-size": "capacity",
    "discount": "gamma",
    "env-id": "env",
    "eval-freq": "evaluate.interval-opt-steps",
    "exp-name": "run-dir",
    "experiment-name": "mlflow",
    "gradient-steps": "samples-per-insert",
    "learning-starts": "min-size",
    "lr": "learning-rate",
    "n-envs": "envs-per-actor",
    "net-arch": "hidden",
    "num-envs": "envs-per-actor",
    "num-workers": "actors",
    "policy-kwargs": "hidden",
    "save": "save.interval-opt-steps",
    "save-freq": "save.interval-opt-steps",
    "steps-per-eval": "evaluate.interval-opt-steps",
    "total-timesteps": "max-env-steps",
    "train-freq": "samples-per-insert",
    "train-frequency": "samples-per-insert",
}
"""Flags of other libraries -> names here, or their ends."""

_ALIKE, _NEAR, _MOST = 0.85, 0.65, 3
"""Similarity above which flags are suggested for an unknown one, 1 being equal; that for flags if
none is so similar; and the maximum number of them."""


def as_flags(text: str) -> str:
    """Return the flags of the settings that a text names, as text to append; "" if none."""
    found = [
        group + rest
        for group, rest in _SETTING.findall(text)
        if not rest.endswith((".py", ".yaml", *_NO_FLAGS))
    ]
    flags = [flag_of(name) for name in dict.fromkeys(found)]
    if not flags:
        return ""
    return f"as {'a flag' if len(flags) == 1 else 'flags'}: {', '.join(flags)}"


def unknown_flags(words: Sequence[str], settings: Sequence[Hint], prog: str, lists: str) -> str:
    """Say which arguments a command does not know, and suggest the nearest flags for `settings`.

    `lists` is the flag that shows all of them.
    """
    known = _flags_of(settings)
    flags = dict.fromkeys(word.partition("=")[0] for word in words if _FLAG.match(word))
    unknown = ", ".join(flag + _meant(flag, known) for flag in flags)
    what = f"flag{'s' * (len(flags) > 1)} {unknown}" if flags else f"argument {words[0]!r}"
    return f"unknown {what}; {prog} {lists} shows all flags"


def unknown_in(words: Sequence[str], settings: Sequence[Hint]) -> list[str]:
    """Return the flags of a command line that set none of `settings`.

    Those of a group whose kind is chosen on the command line, as in `agent.exploration:softmax`,
    count as known.
    """
    known = _flags_of(settings)
    known += [re.sub(r"^--(.*\.)?", r"--\1no-", flag) for flag in known]
    chosen = tuple(f"--{word.partition(':')[0]}." for word in words if ":" in word)
    given = (word.partition("=")[0] for word in dashed(words) if word[:2] == "--")
    return [flag for flag in given if flag not in known and not flag.startswith(chosen)]


def _flags_of(settings: Sequence[Hint]) -> list[str]:
    return [flag_of(name) for part in settings for name in _names(part)]


def flag_of(name: str) -> str:
    """Return the flag of a setting, or the usual form of a flag; `lambda_` keeps its end."""
    return "--" + _WITHIN.sub("-", name.removeprefix("--"))


_WITHIN = re.compile(r"(?<=\w)_(?=\w)")


def _meant(flag: str, known: Sequence[str]) -> str:
    """Return a question that names the flags that may be meant; "" if none is near."""
    if flag in known:
        return ", which follows --"
    word = _last_word(flag)
    other = _OTHER_NAMES.get(word, word)
    meant = _flag_for(flag) or [
        k for k in known if _last_word(k) in {word, other} or k == f"--{other}"
    ]
    if not meant and other != word:  # as SAC, which has a learning rate for each network
        meant = [k for k in known if k.endswith(f"-{other}")]
    if not meant:
        near = {one: _alike(word, _last_word(one)) for one in known}
        least = _ALIKE if max(near.values(), default=0.0) >= _ALIKE else _NEAR
        meant = [one for one in near if near[one] >= least]
        meant.sort(key=lambda one: (near[one], _alike(flag, one)), reverse=True)
    return f" (did you mean {' or '.join(meant[:_MOST])}?)" if meant else ""


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


_FLAG_OF = {
    re.compile(rf"\btransport\.{setting}\b"): flag
    for setting, flag in (("bind", "--listen"), ("advertise", "--advertise"))
}


def as_typed(text: str, argv: Sequence[str]) -> str:
    """Return an error with the flags of a command line in place of what they stand for."""
    for setting, flag in _FLAG_OF.items():
        if value_of(flag, argv) is not None:
            text = setting.sub(flag, text)
    if _ACTORS.fullmatch(value_of("--actors", argv) or ""):
        text = text.replace("hosts.min_actors", "the first number of --actors")
    return text


def dashed(argv: Sequence[str]) -> list[str]:
    """Return arguments with flags as help shows them; the parser also accepts `--run_dir`."""
    words = []
    for word in argv:
        name, *value = word.split("=", 1)
        words.append("=".join([flag_of(name), *value]) if name[:2] == "--" else word)
    return words


def value_of(flag: str, argv: Sequence[str]) -> str | None:
    """Return the last value of a flag before the parser knows all flags; None if not given."""
    found = None
    for word, after in pairwise([*argv, ""]):
        if word.startswith(f"{flag}="):
            found = word.partition("=")[2]
        elif word == flag and after:
            found = after
    return None if found == "None" else found


def for_hosts(words: list[str]) -> list[str]:
    """Return a command line with the settings that `--listen` and a range of actors stand for."""
    spread = [part for word in words for part in _without_range(word)]
    if (bind := value_of("--listen", words)) is not None:
        tcp_address(bind, name="--listen")
        launcher = value_of("--launcher", words)
        if launcher in {"process", "thread"}:
            raise ConfigError(
                f"--listen lets hosts start the actors, but --launcher {launcher} starts them "
                "here; omit one of the two"
            )
        spread += [*([] if launcher else ["--launcher", "hosts"]), "--transport.bind", bind]
    if (name := value_of("--advertise", words)) is not None:
        advertised(name, "tcp://127.0.0.1:1", setting="--advertise")
        spread += ["--transport.advertise", name]
    least = (_ACTORS.fullmatch(value_of("--actors", words) or "") or [None, None])[1]
    return [*spread, "--hosts.min-actors", least] if least is not None else spread


_ACTORS = re.compile(r"([0-9]+)\.\.([0-9]+)")


def _without_range(word: str) -> list[str]:
    """Return a flag without the least number of actors."""
    flag, equals, value = word.rpartition("=")
    form = _ACTORS.fullmatch(value)
    return [word] if form is None else [f"{flag}{equals}{form[2]}"]


def check_config_file(path: Path) -> None:
    """Raise `ConfigError` unless the path of `--config` is a file."""
    if not path.exists():
        raise ConfigError(f"--config: {path} does not exist")
    if path.is_dir():
        raise ConfigError(f"--config: {path} is a directory; name a file in it")


def without_rare(config: T) -> T:
    """Return a config with the same values, of which a parser shows only the common settings."""
    cls: Hint = type(config)
    hints: dict[str, Hint] = typing.get_type_hints(cls, include_extras=True)
    suppress: Hint = tyro.conf.Suppress
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(cls) if f.init}
    for name, value in values.items():
        if _has_common(value):
            values[name] = without_rare(value)
            hints[name] = type(values[name])
        elif not settings_of(cls)[name].common:
            hints[name] = suppress[hints[name]]
    shown = dataclasses.make_dataclass(
        cls.__name__,
        [(n, hints[n], dataclasses.field(default_factory=partial(values.get, n))) for n in values],
        bases=(cls,),
        namespace={"__post_init__": lambda _: None},  # the values have been checked
        frozen=True,
        kw_only=True,
    )
    return shown(**values)  # type: ignore[no-any-return]


def _has_common(value: object) -> bool:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    inner = (getattr(value, field.name) for field in dataclasses.fields(value))
    is_common = (setting.common for setting in settings_of(type(value)).values())
    return any(is_common) or any(map(_has_common, inner))


def _names(settings: Hint) -> Iterator[str]:
    """Yield the dotted names of the flags of a dataclass, or of an object with its settings."""
    for field in dataclasses.fields(settings):
        value = None if isinstance(settings, type) else getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from (f"{field.name}.{name}" for name in _names(value))
        elif "Positional" not in str(field.type):
            yield field.name


def _flag_for(flag: str) -> list[str]:
    """Return the flag for a setting that has another name in Python."""
    asked = flag.removeprefix("--").replace("-", "_")
    return [flag_of(ALSO_CALLED[asked])] if asked in ALSO_CALLED else []


def _last_word(flag: str) -> str:
    return flag.removeprefix("--").rpartition(".")[2]


_STEPS = "steps,"

REGISTRY = ConstructorRegistry()
"""How tyro parses and shows these settings; without it each would be a subcommand."""


@REGISTRY.primitive_rule
def _schedule_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[typing.Any] | None:
    marked = (typing.get_args(kind)[:1] or (kind,) for kind in typing.get_args(info.type))
    kinds = [bare for (bare,) in marked]
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


@REGISTRY.primitive_rule
def _named_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[typing.Any] | None:
    if info.type not in {Named, Named | None}:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="MODULE:NAME" if info.type is Named else "{None|MODULE:NAME}",
        instance_from_str=lambda words: None if words[0] == "None" else Named.parse(words[0]),
        is_instance=lambda value: isinstance(value, Named | None),
        str_from_instance=lambda value: [str(value)],
    )


@REGISTRY.primitive_rule
def _whole_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[typing.Any] | None:
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: as_whole(words[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def read_setting(text: str) -> float | Schedule:
    """Parse a number or a schedule."""
    try:
        if ":" not in text:
            return float(text)
        points = text.removeprefix(_STEPS).split(",")
        pairs = [point.split(":") for point in points]
        return Schedule(
            points=tuple((_env_steps(at), float(value)) for at, value in pairs),
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
    """Format a setting so that `read_setting` returns the same."""
    if not isinstance(setting, Schedule):
        return str(setting)
    points = ",".join(f"{env_steps}:{value}" for env_steps, value in setting.points)
    return points if setting.interpolate else _STEPS + points


def _env_steps(text: str) -> int:
    float(text)  # rejected with an example if it is not a number
    try:
        return as_whole(text)
    except ValueError as error:
        raise ConfigError(
            f"environment steps of a schedule must be whole numbers, got {text}"
        ) from error
