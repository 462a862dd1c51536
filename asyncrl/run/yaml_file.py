"""Settings in YAML files: read strictly, written so that they are read back without loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from asyncrl.core.errors import ConfigError
from asyncrl.core.settings import T, from_plain, to_plain

ALSO_CALLED = {
    "env.id": "env",
    "env.kwargs": "env_kwargs",
    "env.n_envs": "envs_per_actor",
    "env.info": "env_info",
    "env.wrappers": "env_wrappers",
    "env.vectorization": "vectorization",
}
"""Names in `EnvConfig` -> names in a file."""


def check_names(data: object, name: str = "") -> None:
    """Reject settings of a file that have another name here, and suggest that name."""
    if name in ALSO_CALLED:
        raise ConfigError(f"{name}: there is no such setting; did you mean {ALSO_CALLED[name]}?")
    if isinstance(data, Mapping):
        for key, value in data.items():
            check_names(value, f"{name}.{key}" if name else str(key))


def save_yaml(config: object, path: Path) -> None:
    """Write a dataclass as YAML."""
    write_yaml(to_plain(config), path)


def load_yaml(cls: type[T], path: Path) -> T:
    """Load a `cls` from a YAML file; an empty file gives the defaults."""
    try:
        data = read_yaml(path)
        check_names(data)
        return from_plain(cls, {} if data is None else data)
    except ConfigError as error:
        raise ConfigError(f"cannot load {path}: {error}") from error


Anchor = Any  # str | None, which PyYAML's stubs do not declare


def read_yaml(path: Path) -> object:
    """Return the content of a file, None if it is empty; raise `ConfigError` for invalid YAML.

    Duplicate keys are rejected too: PyYAML would silently use the last one.
    """
    try:
        loader = _Strict(path.read_bytes())
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(str(error)) from error


def write_yaml(plain: object, path: Path) -> None:
    """Write nested dictionaries, lists and scalars, in their order."""
    # In ASCII: with allow_unicode, PyYAML cannot read back some line separators that it writes.
    path.write_text(yaml.safe_dump(plain, sort_keys=False), encoding="ascii")


_MERGE = "tag:yaml.org,2002:merge"


class _Strict(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Anchor) -> yaml.MappingNode:
        # Checked here, because later the keys that `<<` merges in are among the others.
        node = super().compose_mapping_node(anchor)
        first: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            name = str(key.value)
            if first.setdefault(name, key) is not key:
                lines = (one.start_mark.line + 1 for one in (first[name], key))
                raise ConfigError(
                    f"{name!r} is given twice, in lines {' and '.join(map(str, lines))}; merge the "
                    "two"
                )
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # PyYAML 6.0.4 lets the last mapping of `<<: [*a, *b]` win, not the first one.
        merges = [value for key, value in node.value if key.tag == _MERGE]
        node.value = [pair for pair in node.value if pair[0].tag != _MERGE]
        super().flatten_mapping(node)
        for value in merges:
            for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(one, yaml.MappingNode):
                    raise ConfigError(f"line {one.start_mark.line + 1}: << needs a mapping")
                self.flatten_mapping(one)
                node.value = one.value + node.value
