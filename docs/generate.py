"""Write the reference pages of the site from declarations in the code: `python -m docs.generate`.

Settings come from the dataclasses and the docstrings of their fields, metrics from `METRICS`, help
from the command line, API pages from docstrings, results from `benchmarks/`. Pages go to
`docs/reference/`, pictures to `docs/assets/curves/`; other pages hold blocks that are written here,
between `<!-- kind: name -->` and `<!-- end of kind -->`. All of it is committed, so that pages read
well where they lie; a test compares them. No page states anything that code and results do not.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import os
import re
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from types import NoneType

import yaml

from asyncrl.actor.evaluator import EpisodeEvaluatorConfig
from asyncrl.agents.parts.exploration import EpsilonGreedy, EpsilonLadder, Softmax
from asyncrl.agents.parts.schedules import Schedule
from asyncrl.agents.parts.torch_agent import TorchConfig
from asyncrl.cli.flags import Output
from asyncrl.cli.main import main as command_line
from asyncrl.core.declared import Hint, Kind, Setting, origin_of, settings_of
from asyncrl.core.inference import ServingConfig
from asyncrl.core.named import Named
from asyncrl.core.ranks import RanksConfig
from asyncrl.core.segment import SegmentConfig
from asyncrl.core.settings import load_object, to_plain
from asyncrl.envs.atari import AtariConfig
from asyncrl.fleet.config import ActorManagerConfig, HostsConfig, RayConfig, RestartPolicyConfig
from asyncrl.learner.config import AsyncTrainerConfig, RateLimiterConfig, ReplayBufferProxyConfig
from asyncrl.learner.run_services import RecordConfig, SaveConfig
from asyncrl.metrics.metrics import METRICS
from asyncrl.replay.hindsight import HindsightReplayConfig
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.sequences import PrioritizedSequenceReplayConfig, SequenceReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.run.modes import IN_FILES, is_within, needs_of
from asyncrl.run.named_parts import NamedParts
from asyncrl.run.presets import PRESETS
from asyncrl.run.run_config import EvaluationConfig, RunConfig
from asyncrl.transport.zeromq_socket import ZmqTransportConfig
from benchmarks.learning.runs import DIRECTORY, Run, kept
from docs.api import api_page
from docs.measured import learning, measurements_page, pictures

ROOT = Path(__file__).parent.parent

GROUPS: Mapping[str, tuple[type, ...]] = {
    "": (RunConfig,),
    "evaluate": (EvaluationConfig,),
    "evaluate.play": (EpisodeEvaluatorConfig,),
    "record": (RecordConfig,),
    "save": (SaveConfig,),
    "replay": (
        UniformReplayConfig,
        PrioritizedReplayConfig,
        HindsightReplayConfig,
        SequenceReplayConfig,
        PrioritizedSequenceReplayConfig,
        TrajectoryQueueConfig,
    ),
    "limiter": (RateLimiterConfig,),
    "trainer": (AsyncTrainerConfig,),
    "segment": (SegmentConfig,),
    "transport": (ZmqTransportConfig,),
    "hosts": (HostsConfig,),
    "ranks": (RanksConfig,),
    "ray": (RayConfig,),
    "proxy": (ReplayBufferProxyConfig,),
    "supervision": (ActorManagerConfig,),
    "supervision.restart": (RestartPolicyConfig,),
    "serving": (ServingConfig,),
    "parts": (NamedParts,),
}
"""The groups of a run's settings -> the classes whose fields they are."""

COMMANDS = {
    "train": ["train", "--help"],
    "resume": ["resume", "--help"],
    "join": ["join", "--help"],
    "replay": ["replay", "--help"],
    "eval": ["eval", "--help"],
    "play": ["play", "--help"],
    "export": ["export", "--help"],
    "runs": ["runs", "--help"],
    "compare": ["compare", "--help"],
    "report": ["report", "--help"],
    "plot": ["plot", "--help"],
    "bench": ["bench", "--help"],
    "bench tune": ["bench", "tune", "--help"],
    "doctor": ["doctor", "--help"],
}

UNITS = {"_s": "seconds", "_bytes": "bytes", "_opt_steps": "optimisation steps"}
UNITS |= {"_env_steps": "environment steps", "_transitions": "transitions"}

SCHEDULES = """\
A setting that may be a schedule can follow the environment steps of the whole run. A flag gives it
as points of environment steps and values: `--agent.learning-rate 0:3e-4,1e6:0` interpolates between
the points, and `steps,0:1,1e4:0.05` holds each value until the next point. In Python it is
[`Schedule`](api.md#schedule). A plain number is constant."""

IMPORTED = "[import path](../guides/command-line.md#parts-of-your-own)"

NOTICE = "<!-- Written by `python -m docs.generate`; change the code instead. -->\n\n"


def pages() -> dict[str, str]:
    """Return the generated pages, by file name."""
    made = {
        "cli.md": cli_page(),
        "settings.md": settings_page(),
        "agents.md": agents_page(),
        "presets.md": presets_page(),
        "metrics.md": metrics_page(),
        "api.md": api_page(),
    }
    noted = {name: NOTICE + text for name, text in made.items()}
    return {**noted, "measurements.md": measurements_page()}


# --- settings ------------------------------------------------------------------------------------


def settings_page() -> str:
    """Return all settings of a run except those of agents."""
    parts = [
        "# Settings",
        "Every setting of a run is a key of the YAML file, a field of a dataclass and, unless it "
        "says *no flag*, a command-line flag, under the same name. `replay.n_step` is the flag "
        "`--replay.n-step`, the key `n_step` of the section `replay:`, and the field "
        "`RunConfig.replay.n_step`.",
        "A setting marked *common* is shown by `--help`; `--help-all` shows those that have an "
        "effect in the run. Settings of agents have [a separate page](agents.md). "
        "[Presets](presets.md) change defaults. "
        "In a group with several classes, the first one lists the settings that all share.",
        "## train",
        "Options of `asyncrl train` that are not part of the configuration.",
        *fields_of(Output, ""),
    ]
    for group, classes in GROUPS.items():
        parts.append(f"## {group or 'run'}")
        for cls in classes:
            if len(classes) > 1:
                parts.append(f"### {cls.__name__}")
            parts.append(f"`{cls.__module__}.{cls.__name__}`: {summary(cls)}")
            first = cls is classes[0]
            parts += fields_of(
                cls, group, "" if first else cls.__name__, None if first else classes[0]
            )
    parts += [
        "## env_kwargs of Atari games",
        "Environments named `ALE/...` are preprocessed; `--env-kwargs` sets how, as in "
        "`--env-kwargs life_loss True`. See [Images](../guides/images.md#atari).",
        *fields_of(AtariConfig, "env_kwargs"),
    ]
    return "\n\n".join(parts) + "\n"


def agents_page() -> str:
    """Return the settings of agents: the shared ones once, then those of each algorithm."""
    parts = [
        "# Settings of agents",
        "The flags begin with `--agent.`; the YAML section is `agent:`.",
        "## Schedules",
        SCHEDULES,
        "## Shared by all agents",
        *fields_of(TorchConfig, "agent", anchor="agent"),
    ]
    for name, cls in agent_classes().items():
        parts += [
            f"## {cls.__name__}",
            f"{summary(cls)} Module: `{cls.__module__}`. Preset: `{name}`.",
            *fields_of(cls, "agent", anchor=name, beside=TorchConfig),
        ]
    parts += ["## Exploration", "What `agent.exploration` of agents on discrete actions can be."]
    for cls in (EpsilonGreedy, EpsilonLadder, Softmax):
        parts += [f"### {cls.__name__}", summary(cls)]
        parts += fields_of(cls, "agent.exploration", anchor=cls.__name__)
    return "\n\n".join(parts) + "\n"


def agent_classes() -> dict[str, type]:
    """Return each agent's config class, under the shortest name of its presets."""
    found: dict[type, str] = {}
    for name in sorted(PRESETS, key=len):
        found.setdefault(type(PRESETS[name]().agent), name)
    return {name: cls for cls, name in sorted(found.items(), key=lambda item: item[1])}


def fields_of(cls: type, group: str, anchor: str = "", beside: type | None = None) -> Iterator[str]:
    """Yield an entry for each setting of a dataclass; nested dataclasses are groups instead.

    Those that the class `beside` has with the same default are left out.
    """
    others = settings_of(beside) if beside else {}
    for setting in settings_of(cls).values():
        name, default = f"{group}.{setting.name}".removeprefix("."), default_of(setting.field)
        other = others.get(setting.name)
        if (
            (name in GROUPS and cls is not Output)
            or name == "agent"
            or (other and default_of(other.field) == default)
        ):
            continue
        marks = ", common" if setting.common else ""
        marks += ", no flag" if is_within(name, IN_FILES) else ""
        for need in [*needs_of(name)][-1:]:  # the nearest one
            marks += f"; needs `{need.setting}` to be {' or '.join(need.values)}"
        place = f"{anchor}.{setting.name}" if anchor else name
        yield (
            f"#### `{name}`\n\n"
            f'<a id="{place}"></a>{words_of(setting)}. Default: {default}{marks}.\n\n'
            f"{setting.text}"
        )


def words_of(setting: Setting) -> str:
    """Say what a setting may be: its kinds, range and unit."""
    text = " or ".join(dict.fromkeys(map(_kind_words, setting.kinds)))
    unit = next((unit for end, unit in UNITS.items() if setting.name.endswith(end)), "")
    text += "; in YAML its import path `module:name`; no flag" if "function" in text else ""
    return text[0].upper() + text[1:] + (f", in {unit}" if unit else "")


KINDS: Mapping[Hint, str] = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "true or false",
    NoneType: "None",
    Path: "path",
    tuple: "integers",
    dict: "names and values",
    Mapping: "names and values",
    Callable: "function",
    Named: IMPORTED,
    Schedule: "[schedule](agents.md#schedules)",
}


def _kind_words(kind: Kind) -> str:
    origin, arguments = origin_of(kind.hint) or kind.hint, typing.get_args(kind.hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in arguments)
    words = KINDS.get(origin) or f"`{getattr(origin, '__name__', origin)}`"
    if origin is tuple and arguments[0] in {str, Named}:
        words = "names" if arguments[0] is str else f"several of {IMPORTED}"
    allowed = re.sub(r"^(be|lie) ", "", str(kind.within)) if kind.within else ""
    return f"{words}, {allowed}" if allowed else words


def default_of(field: dataclasses.Field[typing.Any]) -> str:
    """Return a field's default as code."""
    if field.default is not dataclasses.MISSING:
        return f"`{field.default!r}`".replace("PosixPath", "Path")
    if field.default_factory is dataclasses.MISSING:
        return "none, must be given"
    made = field.default_factory()
    return f"`{type(made).__name__}`" if dataclasses.is_dataclass(made) else f"`{made!r}`"


def summary(cls: type) -> str:
    """Return the first paragraph of a class's docstring."""
    return inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


# --- presets, command line, metrics, API ---------------------------------------------------------


def presets_page() -> str:
    """Return each preset and what it sets that differs from the defaults."""
    parts = [
        "# Presets",
        "A preset is the settings of a whole run that fit each other. `asyncrl train NAME` starts "
        "from it; in Python `asyncrl.preset(NAME)` returns it. Below each name are the settings "
        "that differ from the [defaults](settings.md), as they would stand in a YAML file.",
    ]
    plain = to_plain(RunConfig())
    for name, make in PRESETS.items():
        changed = _difference(to_plain(make()), plain)
        text = yaml.safe_dump(changed, sort_keys=False, default_flow_style=None, width=88)
        parts += [f"## {name}", inspect.getdoc(make) or "", f"```yaml\n{text}```"]
    return "\n\n".join(parts) + "\n"


def _difference(now: Mapping[str, Hint], start: Mapping[str, Hint]) -> dict[str, Hint]:
    changed = {}
    if "type" in now and now["type"] != start.get("type"):
        changed["type"] = now["type"]
        start = {**to_plain(load_object(now["type"])()), "type": now["type"]}  # type: ignore[operator]
    for name, value in now.items():
        if value == start.get(name):
            continue
        both = isinstance(value, Mapping) and isinstance(start.get(name), Mapping)
        changed[name] = _difference(value, start[name]) if both else value
    return changed


def cli_page() -> str:
    """Return what `--help` says, of each command."""
    usage = help_of(["--help"])
    parts = ["# Command line", f"```text\n{usage}\n```"]
    for name, words in COMMANDS.items():
        parts += [f"## asyncrl {name}", f"```text\n{help_of(words)}\n```"]
    parts += [
        "## Exit codes",
        "| code | meaning |\n|---|---|\n"
        "| 0 | done |\n"
        "| 1 | failed, or a run that has learned nothing |\n"
        "| 2 | wrong arguments or settings |\n"
        "| 129, 130, 143 | interrupted by SIGHUP, SIGINT or SIGTERM, a run after a checkpoint |",
    ]
    return "\n\n".join(parts) + "\n"


def help_of(words: list[str]) -> str:
    """Return what the command line prints for these words, 80 columns wide, without colours."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ |= {"COLUMNS": "80", "NO_COLOR": "1"}
    try:
        with redirect_stdout(io.StringIO()) as printed:
            code = command_line(words)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    if code:
        raise RuntimeError(f"asyncrl {' '.join(words)} ended with exit code {code}")
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue()).strip()
    return "\n".join(_wrapped(line) for line in text.splitlines())


def _wrapped(line: str) -> str:
    """Break a line of help that is wider than the page."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(line, 80, subsequent_indent=indent) if len(line) > 80 else line


def metrics_page() -> str:
    """Return the list of metrics, a table for each prefix."""
    groups: dict[str, list[str]] = {}
    for name, metric in METRICS.items():
        prefix = name.partition("/")[0] if "/" in name else "Counters and rates"
        prefix = "eval" if name == "eval_reward" else prefix
        groups.setdefault(prefix, []).append(f"| `{name}` | {metric.unit} | {metric.meaning} |")
    parts = [
        "# Metrics",
        "Each line of `metrics.jsonl` is a JSON object that holds some of these names. Other "
        "recorders write the same names. `<id>` stands for the number of an actor, or of a rank.",
    ]
    for prefix, rows in groups.items():
        head = "| name | unit | meaning |\n|---|---|---|"
        title = prefix if prefix[0].isupper() else f"{prefix}/"
        parts += [f"## {title}", "\n".join([head, *rows])]
    return "\n\n".join(parts) + "\n"


# --- pages that lie in docs/ already -----------------------------------------------------------

_BLOCK = re.compile(r"^<!-- (\w+): (\S+) -->\n.*?^<!-- end of \1 -->$", re.DOTALL | re.MULTILINE)
"""What is written into a page: a kind of text, and of what."""


def _filled(runs: Sequence[Run]) -> dict[Path, str]:
    """Return the pages that contain code, docstrings or results, with what these are today."""
    kinds: Mapping[str, Callable[[str], str]] = {
        "code": _code_of,
        "paper": lambda module: (inspect.getdoc(import_module(module)) or "").partition("\n\n")[2],
        "learned": lambda page: learning(page, runs),
        "file": _file_of,
    }

    def block(found: re.Match[str]) -> str:
        kind, name = found[1], found[2]
        text = kinds[kind](name).strip()
        return f"<!-- {kind}: {name} -->\n{text}\n<!-- end of {kind} -->"

    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}
    return {path: _BLOCK.sub(block, text) for path, text in texts.items() if _BLOCK.search(text)}


def _code_of(name: str) -> str:
    return f"```python\n{(ROOT / name).read_text(encoding='utf-8')}```"


def _file_of(name: str) -> str:
    """Return a page of the root, whose links lead out of the folder that it is shown in."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.sub(r"\]\((?!#|https?:)", "](../../", text)


def written() -> dict[Path, str]:
    """Return all that is written here, by path."""
    runs, docs = kept(DIRECTORY), ROOT / "docs"
    reference = {docs / "reference" / name: text for name, text in pages().items()}
    curves = {docs / "assets" / "curves" / name: text for name, text in pictures(runs).items()}
    return {**reference, **curves, **_filled(runs)}


def main() -> None:
    """Write the pages; a page that is as before keeps its time stamp."""
    for path, text in written().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
