"""`asyncrl export`: writes a run's model as a file that acts without asyncrl and torch."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from asyncrl.agents.parts.torch_agent import TorchPolicy
from asyncrl.cli.output import show
from asyncrl.cli.parser import parsed
from asyncrl.cli.run_directory import find_model
from asyncrl.core.errors import ConfigError
from asyncrl.export import policy_numpy
from asyncrl.export.export import export_policy
from asyncrl.training.describe_env import describe_in_child
from asyncrl.training.saved_model import policy_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportArguments:
    """Write a trained policy, without exploration, as a file for numpy or as an ONNX model."""

    run_dir: Annotated[Path, tyro.conf.Positional]
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
    model = find_model(arguments.run_dir, arguments.checkpoint)
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
    model = find_model(arguments.run_dir, arguments.checkpoint)
    config, saved = model.config(), model.load()
    make_env = replace(config.eval_env_config(), n_envs=1).build
    spec = describe_in_child(make_env, timeout_s=config.supervision.start_timeout_s).spec
    source = f"in {model.config_path}"
    policy = policy_of(saved, config.agent, spec, seed=config.seed, source=source)
    if not isinstance(policy, TorchPolicy):
        raise ConfigError(
            f"{type(policy).__name__} does not consist of torch modules, so it cannot be exported"
        )
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        export_policy(policy, spec, to)
        how = "" if to.suffix == ".onnx" else f"; {_copy_loader(to)}"
    except OSError as error:
        raise ConfigError(
            f"cannot write {error.filename or to}: {error.strerror}; name a file in a writable "
            "place"
        ) from error
    steps = saved.count("opt_steps")
    show(f"{to} holds the model after {steps} optimisation steps{how}")
    return 0


def _copy_loader(to: Path) -> str:
    """Copy the numpy loader beside the file; return a sentence about its use."""
    loader = to.with_name("policy_numpy.py")
    shutil.copyfile(policy_numpy.__file__, loader)
    remembers = policy_numpy.Policy(to).description["memory"]
    return (
        f'{loader} loads it: policy = Policy("{to.name}"); '
        f"{'policy.reset() at the start of episodes; ' if remembers else ''}policy.act(obs)"
    )
