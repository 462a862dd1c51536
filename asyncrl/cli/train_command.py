"""`asyncrl train`: config from preset, file and flags; a run directory; progress; a summary."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from asyncrl.bookkeeper import TrainResult
from asyncrl.cli.run_config import RunConfig, preset
from asyncrl.cli.signals import interrupting
from asyncrl.config import load_yaml, save_yaml, to_plain
from asyncrl.errors import ConfigError
from asyncrl.interrupter import Interrupter
from asyncrl.recorder import Recorder
from asyncrl.recorders.background import BackgroundRecorder
from asyncrl.recorders.jsonl import JsonlRecorder
from asyncrl.recorders.terminal import TerminalRecorder, render_summary
from asyncrl.train import build_async_trainer

__all__ = ["run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where results go, and what is shown."""

    run_dir: Path | None = None
    """Directory of the run; by default a new one under `runs/`."""

    config: Path | None = None
    """YAML file to start from, for instance another run's `config.yaml`; flags go before it."""

    quiet: bool = False
    """Show nothing but the summary."""

    tensorboard: bool = False
    """Also write TensorBoard files into the run directory."""


def run(argv: list[str]) -> int:
    """Train, and return the exit code."""
    if not argv or argv[0].startswith("-"):
        if {"-h", "--help"} & set(argv):
            _parse("dqn", argv)
        raise ConfigError("name an agent: asyncrl train dqn|sac|MODULE:CONFIG [OPTIONS]")
    output, config = _parse(argv[0], argv[1:])
    run_dir = _make_run_dir(output.run_dir, argv[0], config)
    save_yaml(config, run_dir / "config.yaml")
    interrupter = Interrupter()
    make_env = config.env_config().build
    with interrupting(interrupter) as interrupted:
        trainer = build_async_trainer(
            config.agent,
            make_env,
            config,
            stop=config.stop_condition(),
            make_eval_env=config.env_config(n_envs=config.evaluation.play.episodes).build,
            recorder=_recorder(output, config, run_dir),
            checkpoint_dir=run_dir / "checkpoints",
            interrupter=interrupter,
            run_config=to_plain(config),
        )
        result = trainer.train()
    _save_summary(result, run_dir)
    print(render_summary({**result.summary(), "run_dir": str(run_dir)}))
    return interrupted.exit_code


def _parse(agent: str, argv: list[str]) -> tuple[Output, RunConfig]:
    """Read the command line: the preset, or `--config`, gives the defaults of all flags."""
    start = preset(agent)
    if "--config" in argv[:-1]:
        start = load_yaml(RunConfig, Path(argv[argv.index("--config") + 1]))
    concrete = _concrete(start)
    arguments = dataclasses.make_dataclass(
        "TrainArguments",
        [
            ("output", Annotated[Output, tyro.conf.arg(name="")], field(default=Output())),
            ("run", Annotated[type(concrete), tyro.conf.arg(name="")], field(default=concrete)),
        ],
    )
    parsed: Any = tyro.cli(
        arguments,
        prog=f"asyncrl train {agent}",
        description="Train an agent with actor processes.",
        args=argv,
        config=(tyro.conf.CascadeSubcommandArgs,),
    )
    values = {f.name: getattr(parsed.run, f.name) for f in dataclasses.fields(RunConfig)}
    return parsed.output, RunConfig(**values)


def _concrete(config: RunConfig) -> RunConfig:
    """Return the same config in a class that names its members' own classes.

    A field declared as a contract shows no flags; those of the object in it are wanted.
    """
    members = [(name, getattr(config, name)) for name in ("agent", "replay")]
    concrete = dataclasses.make_dataclass(
        "RunConfig",
        [(name, type(value), field(default=value)) for name, value in members],
        bases=(RunConfig,),
        frozen=True,
        kw_only=True,
        slots=True,
    )
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return concrete(**values)  # type: ignore[no-any-return]


def _make_run_dir(wanted: Path | None, agent: str, config: RunConfig) -> Path:
    if wanted is None:
        name = f"{agent.rpartition(':')[2]}-{config.env.rpartition(':')[2].replace('/', '-')}"
        stamp = time.strftime("%Y%m%d-%H%M%S")
        wanted = Path("runs") / f"{name}-{config.seed}-{stamp}"
    if (wanted / "config.yaml").exists():
        raise ConfigError(f"{wanted} already holds a run; give another --run-dir")
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the run directory {wanted}: {error.strerror}") from error
    return wanted


def _recorder(output: Output, config: RunConfig, run_dir: Path) -> Recorder:
    recorders: list[Recorder] = [JsonlRecorder(run_dir / "metrics.jsonl")]
    if output.tensorboard:
        from asyncrl.recorders.tensorboard import TensorBoardRecorder

        recorders.append(TensorBoardRecorder(run_dir / "tensorboard"))
    if not output.quiet:
        stop = config.stop_condition()
        target = config.stop_at_return
        recorders.append(
            TerminalRecorder(
                limits=stop.limits() if stop else {},
                target=("eval_reward", target) if target is not None else None,
            )
        )
    return BackgroundRecorder(recorders)


def _save_summary(result: TrainResult, run_dir: Path) -> None:
    text = json.dumps(result.summary(), indent=2)
    (run_dir / "summary.json").write_text(text + "\n")
