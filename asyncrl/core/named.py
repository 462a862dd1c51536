"""Classes and functions by import path, with settings: `module:name(setting=value)`.

Does not know what they are for.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from asyncrl.core.declared import hints_of
from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import did_you_mean, load_as, load_object, located

FORM = (
    "expected module:name, or with settings module:name(setting=value). Values are literals of "
    "Python: numbers, 'texts', lists, dicts, True, False, None"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """A class or function by import path, and settings that it is called with.

    As text it is `module:name` or `module:name(setting=value)`; in a file it may also be a mapping
    of the settings with a line `type: module:name`.
    """

    path: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        module, _, name = self.path.partition(":")
        if not all(map(str.isidentifier, [*module.split("."), *name.split(".")])):
            raise ConfigError(f"{self.path!r} is not an import path; {FORM}")

    @classmethod
    def parse(cls, text: str) -> Named:
        """Return what a text names; raise `ConfigError` if it has another form. Imports nothing."""
        path, bracket, _ = text.partition("(")
        try:
            return cls(path, _settings(text[len(path) :]) if bracket else {})
        except (SyntaxError, ValueError) as error:
            raise ConfigError(f"{text!r} names no class or function; {FORM}") from error

    @classmethod
    def from_data(cls, data: Any) -> Named:  # noqa: ANN401  # of a file
        """Return what a file says."""
        if isinstance(data, str):
            return cls.parse(data)
        if isinstance(data, Mapping) and isinstance(data.get("type"), str):
            return cls(data["type"], {key: data[key] for key in data if key != "type"})
        raise ConfigError(f"{data!r:.80} names no class or function; {FORM}")

    def to_data(self) -> Any:  # noqa: ANN401
        """Return what a file says."""
        return {"type": self.path, **self.settings} if self.settings else self.path

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        words = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{self.path}({words})" if words else self.path

    def target(self, where: str) -> Any:  # noqa: ANN401  # whatever it is
        """Import it; errors begin with `where`, as those of the other methods do."""
        with located(where):
            return load_object(self.path)

    def load(self, where: str, *arguments: str) -> partial[Any]:
        """Import it, and return it with its settings, converted to the types that it declares.

        `arguments` are the names of what else it will be called with, in their order. Raises
        `ConfigError` if it cannot be called with these.
        """
        target = self.target(where)
        if not callable(target):
            raise ConfigError(
                f"{where}: {self.path!r} must be a class or a function, got {target!r:.80}"
            )
        is_plain_class = isinstance(target, type) and not dataclasses.is_dataclass(target)
        hints = hints_of(target.__init__ if is_plain_class else target)
        values = {
            name: load_as(value, hints.get(name, Any), f"{where}.{name}")
            for name, value in self.settings.items()
        }
        with located(f"{where}: {self.path}"):
            signature = inspect.signature(target)
            known = signature.parameters
            takes_any = any(one.kind is one.VAR_KEYWORD for one in known.values())
            for name in () if takes_any else values.keys() - known:
                raise ConfigError(f"it has no setting {name!r}{did_you_mean(name, known)}")
            signature.bind(*arguments, **values)
        return partial(target, **values)

    def make(self, where: str) -> Any:  # noqa: ANN401
        """Call it with its settings."""
        make = self.load(where)
        with located(f"{where}: {self.path}"):
            return make()


def _settings(brackets: str) -> dict[str, Any]:
    """Return the keyword arguments of `(setting=value, ...)`; raise `ValueError` for others."""
    call = ast.parse(f"name{brackets}", mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise ValueError(brackets)
    settings = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError(brackets)
        settings[keyword.arg] = ast.literal_eval(keyword.value)
    return settings
