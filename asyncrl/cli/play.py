"""`asyncrl play`: shows how a trained model plays, in a window of the environment's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from asyncrl.cli.eval import EpisodeArguments, line_of, played
from asyncrl.cli.output import show
from asyncrl.cli.parser import parsed
from asyncrl.core.declared import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayArguments(EpisodeArguments):
    """Watch a trained model in a window. Needs a display. Ctrl-C ends it."""

    episodes: Count = 3
    """Episodes to play, one after another, with each checkpoint."""


parse = partial(parsed, PlayArguments, "asyncrl play")


def run(arguments: PlayArguments) -> int:
    """Play, print the scores, and return the exit code."""
    from asyncrl.envs.film import check_window  # imports gymnasium

    check_window()
    for scored in played(arguments, window=True):
        show(line_of(scored))
    return 0
