"""The JSON schema of `config.yaml` knows what a file may hold."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from asyncrl.cli.main import main
from asyncrl.cli.schema import schema_of_runs
from asyncrl.core.settings import to_plain
from asyncrl.training.presets import PRESETS

SCHEMA = schema_of_runs()
UNIFORM = "asyncrl.replay.uniform:UniformReplayConfig"
KINDS: Mapping[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}
BOUNDS = {
    "minimum": operator.lt,
    "exclusiveMinimum": operator.le,
    "maximum": operator.gt,
    "exclusiveMaximum": operator.ge,
}
"""What values outside a bound are, compared with it."""


def wrong(value: Any, schema: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """Yield the names of values that a schema does not allow, by the words that ours uses."""
    if (
        not isinstance(value, KINDS.get(schema.get("type", ""), object))
        or value not in schema.get("enum", [value])
        or value != schema.get("const", value)
        or any(outside(value, schema[word]) for word, outside in BOUNDS.items() if word in schema)
        or ("anyOf" in schema and not any(fits(value, one) for one in schema["anyOf"]))
    ):
        yield name
    elif isinstance(value, list):
        for item in value:
            yield from wrong(item, schema.get("items", {}), name)
    elif isinstance(value, dict):
        yield from wrong_members(value, schema, name)


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    return next(wrong(value, schema), None) is None


def wrong_members(value: dict[str, Any], schema: Mapping[str, Any], name: str) -> Iterator[str]:
    known = schema.get("properties", {})
    if schema.get("additionalProperties", True) is False:
        yield from (f"{name}.{key}" for key in value.keys() - known.keys())
    for key in value.keys() & known.keys():
        yield from wrong(value[key], known[key], f"{name}.{key}")
    for rule in schema.get("allOf", []):
        if "type" in value and fits(value, rule["if"]):
            yield from wrong(value, rule["then"], name)


@pytest.mark.parametrize("preset", PRESETS)
def test_settings_of_every_preset_are_allowed(preset: str) -> None:
    plain = json.loads(json.dumps(to_plain(PRESETS[preset]())))
    assert not [*wrong(plain, SCHEMA)]
    for group in ("agent", "replay"):
        misspelt = {**plain, group: {**plain[group], "nope": 1}}
        assert [*wrong(misspelt, SCHEMA)] == [f".{group}.nope"], "its class is known"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"actors": 0}, ".actors"),
        ({"replay": {"type": UNIFORM, "gamma": 1.5}}, ".replay.gamma"),
        ({"trainer": {"max_lag_s": -1.0}}, ".trainer.max_lag_s"),
        ({"mode": "nope"}, ".mode"),
        ({"limiter": {"min_size": "many"}}, ".limiter.min_size"),
        ({"nope": 1}, ".nope"),
    ],
)
def test_mistakes_are_found(data: Any, name: str) -> None:
    assert [*wrong(data, SCHEMA)] == [name]


def test_custom_settings_and_parts_are_allowed() -> None:
    custom = {"agent": {"type": "mine:Config", "x": 1}, "parts": {"stop": "mine:Stop(n=3)"}}
    assert not [*wrong(custom, SCHEMA)]


def test_command_prints_it_with_the_help_of_each_setting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(SCHEMA))
    assert printed["properties"]["actors"]["description"].startswith("Number of actor processes")
    assert printed["properties"]["actors"]["default"] == 2
