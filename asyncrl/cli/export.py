"""`asyncrl export`: writes a run's model as a file that acts without asyncrl and torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from asyncrl.cli.output import show
from asyncrl.cli.parser import POSITIONAL, parsed
from asyncrl.core.errors import ConfigError
from asyncrl.export import policy_numpy
from asyncrl.run.saved_model import SavedModel, load_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportArguments:
    """Write a trained policy, without exploration, as a file for numpy or as an ONNX model."""

    run_dir: Annotated[Path, POSITIONAL]
    """Directory of the run, or of one of its checkpoints."""

    to: Path = Path("policy.npz")
    """File to write. `.onnx` writes an ONNX model (extra: `asyncrl[onnx]`). `.npz` also writes
    `policy_numpy.py`, which loads the file and acts with numpy alone. A recurrent policy
    must know where episodes begin."""

    checkpoint: str | None = None
    """`best`, `newest`, or the number of optimisation steps of a checkpoint. Default: the best, or
    the newest if the run made no evaluation."""


def parse(argv: list[str]) -> ExportArguments:
    """Parse the command line."""
    arguments = parsed(ExportArguments, prog="asyncrl export", args=argv)
    to = arguments.to
    model = SavedModel.at(arguments.run_dir, arguments.checkpoint)
    if (model.checkpoints / model.name).resolve() == to.parent.resolve():
        raise ConfigError(
            f"{to} would be inside checkpoint {model.name}, and deleted with it; write to a file "
            f"elsewhere, such as --to {model.run_dir / to.name}"
        )
    if to.suffix not in {".npz", ".onnx"} or to.is_dir():
        raise ConfigError(f"--to must name a file that ends in .npz or .onnx, got {to}")
    return arguments


def run(arguments: ExportArguments) -> int:
    """Export, and return the exit code."""
    to = arguments.to
    policy = load_policy(arguments.run_dir, arguments.checkpoint)
    try:
        policy.export(to)
    except OSError as error:
        raise ConfigError(
            f"cannot write {error.filename or to}: {error.strerror}; name a file in a writable "
            "place"
        ) from error
    how = "" if to.suffix == ".onnx" else _how_to_load(to)
    show(f"{to} holds the model after {policy.info.version} optimisation steps{how}")
    return 0


def _how_to_load(to: Path) -> str:
    """Return a sentence about the file that loads it."""
    remembers = policy_numpy.Policy(to).description["memory"]
    return (
        f'; {to.with_name("policy_numpy.py")} loads it: policy = Policy("{to.name}"); '
        f"{'policy.reset() at the start of episodes; ' if remembers else ''}policy.act(obs)"
    )
