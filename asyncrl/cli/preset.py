"""What the settings of a run start from: those of a preset, or of an agent of the user's own."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from asyncrl.config import load_object
from asyncrl.errors import ConfigError
from asyncrl.given import is_agent_config
from asyncrl.replay_buffers.prioritized import PrioritizedReplayConfig
from asyncrl.replay_buffers.uniform import UniformReplayConfig
from asyncrl.run_config import RunConfig

ReplayKind = Literal["uniform", "prioritized"]

REPLAYS: Mapping[str, type[UniformReplayConfig | PrioritizedReplayConfig]] = {
    "uniform": UniformReplayConfig,
    "prioritized": PrioritizedReplayConfig,
}
"""What `--replay-kind` chooses from."""

_PRESETS = "asyncrl.cli.presets"


def preset(name: str) -> RunConfig:
    """Return the settings of a preset, see `preset_lines`, or of the agent config at a path."""
    if name in preset_lines():
        module = importlib.import_module(f"{_PRESETS}.{name.replace('-', '_')}")
        settings: RunConfig = module.preset()
        return settings
    if ":" not in name:
        raise ConfigError(
            f"unknown agent {name!r}; use {', '.join(preset_lines())}, or module:Class of an agent "
            "config of your own"
        )
    make = load_object(name)
    if not callable(make):
        raise ConfigError(f"{name} is no class of agent configs, but {make!r:.80}")
    agent = make()
    if not is_agent_config(agent):
        raise ConfigError(
            f"{name} makes {type(agent).__name__}, which is no agent config: that has the methods "
            "build, build_policy and extra_columns, see asyncrl/agent.py"
        )
    return RunConfig(agent=agent)


def preset_like(config: RunConfig) -> str:
    """Return the preset whose agent differs least from a config's, or else the agent's path."""
    agent: Any = config.agent
    cls = type(agent)
    agents: dict[str, Any] = {name: preset(name).agent for name in preset_lines()}
    alike = {name: one for name, one in agents.items() if type(one) is cls}

    def distance(name: str) -> tuple[int, int]:
        differs = [getattr(alike[name], f.name) != getattr(agent, f.name) for f in fields(cls)]
        return sum(differs), len(name)

    return min(alike, key=distance, default=f"{cls.__module__}:{cls.__qualname__}")


def preset_lines() -> dict[str, str]:
    """Return the name of each preset and a line about it, without loading any.

    A preset is a file in `presets/`: its name, with dashes, and the first line of its docstring.
    """
    lines = {}
    for path in sorted((Path(__file__).parent / "presets").glob("[!_]*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines[path.stem.replace("_", "-")] = docstring.partition("\n")[0]
    return lines


def with_replay(config: RunConfig, kind: str) -> RunConfig:
    """Return the same config with replay of this kind; settings that both kinds have stay."""
    cls, now = REPLAYS[kind], config.replay
    if type(now) is cls:
        return config
    if type(now) not in REPLAYS.values():
        raise ConfigError(
            f"--replay-kind {kind} would replace {type(now).__name__}, whose batches "
            f"{type(config.agent).__name__} is made for; leave the flag out"
        )
    shared = {f.name: getattr(now, f.name) for f in fields(cls) if hasattr(now, f.name)}
    return replace(config, replay=cls(**shared))
