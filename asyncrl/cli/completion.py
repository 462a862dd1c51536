"""`asyncrl completion`: a script that completes commands, presets and flags in bash and zsh.

Its words are those of the commands' help when it was made, so no key press starts Python.
"""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from typing import Any

from asyncrl.cli.output import results_alone, show
from asyncrl.cli.parser import parsed
from asyncrl.training.presets import PRESETS

_LINE = re.compile(r"^\W*(?:-\w .*)?--[a-z].*", re.MULTILINE)
"""A line of help that begins with flags. Other flags in the text are those of other commands."""

_FLAG = re.compile(r"--[a-z][\w.-]*\w")

_SCRIPT = """\
# Completion of asyncrl for bash, and for zsh after
# `autoload -U compinit bashcompinit && compinit && bashcompinit`.
_asyncrl() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [[ $COMP_CWORD == 1 ]]; then
    words="{commands}"
  elif [[ $current == -* ]]; then
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  elif [[ $COMP_CWORD == 2 && ${{COMP_WORDS[1]}} == train ]]; then
    words="{presets}"
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _asyncrl asyncrl"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompletionArguments:
    """Print a script that completes commands, presets and flags in bash and zsh."""


def parse(argv: list[str]) -> CompletionArguments:
    """Parse the command line."""
    return parsed(CompletionArguments, prog="asyncrl completion", args=argv)


def run(_: CompletionArguments) -> int:
    """Print the script, and return the exit code."""
    from asyncrl.cli.main import COMMANDS  # the module that runs this one

    flags: dict[str, set[str]] = {}
    for command, module in COMMANDS.items():
        help_of = ["dqn", "--help-all"] if command == "train" else ["--help"]
        flags.setdefault(command.partition(" ")[0], set()).update(_flags_in(module, help_of))
    flags["train"] |= _flags_of_agents()
    flags["resume"] |= flags["train"]
    cases = (f'      {command}) words="{_listed(found)}" ;;' for command, found in flags.items())
    show(
        _SCRIPT.format(commands=" ".join(flags), presets=" ".join(PRESETS), cases="\n".join(cases))
    )
    return 0


def _flags_in(module: str, words: Sequence[str]) -> set[str]:
    """Return the flags that a command's help names."""
    with redirect_stdout(io.StringIO()) as printed, results_alone(), suppress(SystemExit):
        import_module(module).parse(list(words))
    lines = _LINE.findall(printed.getvalue())
    return {flag for line in lines for flag in _FLAG.findall(line)}


def _flags_of_agents() -> set[str]:
    agents: set[Any] = {type(make().agent) for make in PRESETS.values()}
    names = {field.name for agent in agents for field in dataclasses.fields(agent)}
    return {f"--agent.{name.replace('_', '-')}" for name in names}


def _listed(flags: set[str]) -> str:
    return " ".join(sorted(flags))
