"""YAML files, written plainly and read strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from asyncrl.core.errors import ConfigError

Anchor = Any  # str | None, which PyYAML's stubs do not know


def read_yaml(path: Path) -> object:
    """Return what a file holds, None of an empty one; raise `ConfigError` if it is no whole YAML.

    A key that is given twice is refused, too: for PyYAML the last one would count, silently.
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
    # In ASCII: with allow_unicode, PyYAML writes some line separators so that it cannot read them.
    path.write_text(yaml.safe_dump(plain, sort_keys=False), encoding="ascii")


class _Strict(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Anchor) -> yaml.MappingNode:
        # Here, because later on keys that are merged in, as `<<` does, stand beside the others.
        node = super().compose_mapping_node(anchor)
        first: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            name = str(key.value)
            if first.setdefault(name, key) is not key:
                lines = (one.start_mark.line + 1 for one in (first[name], key))
                raise ConfigError(
                    f"{name!r} is given twice, in lines {' and '.join(map(str, lines))}; "
                    "put what belongs there into one place"
                )
        return node
