"""What a YAML file says, laid over the settings that it leaves unsaid: a preset's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from asyncrl.cli.preset import preset
from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import from_plain, load_object, to_plain
from asyncrl.run_config import RunConfig
from asyncrl.yaml_file import read_yaml

Value = Any  # of a setting


def load_over(name: str, path: Path, cls: type[RunConfig] = RunConfig) -> RunConfig:
    """Load a file as a `cls`; what it does not say is as in the preset of this name.

    A section that names another class than the preset has there, as another replay, begins with
    that one's defaults; but for the agent, which the name is about.
    """
    start = preset(name)
    try:
        data = read_yaml(path)
        loaded = from_plain(cls, _over(start, to_plain(start), {} if data is None else data))
    except ConfigError as error:
        raise ConfigError(f"cannot load {path}: {error}") from error
    if type(loaded.agent) is not type(start.agent):
        raise ConfigError(
            f"{path} trains {type(loaded.agent).__name__}, and {name} is "
            f"{type(start.agent).__name__}; name the agent that the file is about"
        )
    return loaded


def _over(config: Value, plain: Value, data: Value) -> Value:
    """Return the plain form of a config, with a file's data in place of what they differ in."""
    if not (isinstance(data, Mapping) and dataclasses.is_dataclass(config)):
        return data
    if "type" in data and not _is_made_by(data["type"], config):
        return data
    inner = {
        name: _over(getattr(config, name), plain[name], value)
        for name, value in data.items()
        if name in plain and hasattr(config, name)
    }
    return {**plain, **data, **inner}


def _is_made_by(path: Value, config: Value) -> bool:
    with suppress(ConfigError):  # which is told of where it stands, when the data is loaded
        return isinstance(path, str) and load_object(path) is type(config)
    return False
