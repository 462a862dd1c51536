"""Wires a synchronous run together: `train_async` without processes, the same bits each time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl.actor.evaluator import EpisodeEvaluator, EpisodeEvaluatorConfig
from asyncrl.actor.step_processor import StepProcessor, make_one_step, schema_of
from asyncrl.checkpoint.resume import open_checkpoints
from asyncrl.core.agent import AgentConfig, PolicyContext, require_agent_config
from asyncrl.core.env import MakeBatchEnv, make_batch_env
from asyncrl.core.errors import ConfigError
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.recorder import Recorder
from asyncrl.core.replay_buffer import ReplayBufferConfig, with_start_columns
from asyncrl.core.seeding import Role, derive_seed
from asyncrl.core.settings import check_declared
from asyncrl.learner.stop_conditions import StopCondition, check_can_hold
from asyncrl.learner.train_result import TrainResult
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.trainer import Trainer, TrainerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncConfig:
    """Everything about a synchronous run but the agent and its environment."""

    seed: int = 0
    """Every random stream of the run is drawn from it."""

    replay: ReplayBufferConfig = field(default_factory=UniformReplayConfig)
    """How experience is kept."""

    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """How environment steps and optimisation steps alternate."""

    play: EpisodeEvaluatorConfig | None = field(default_factory=EpisodeEvaluatorConfig)
    """What an evaluation plays, in the middle of training; None evaluates never."""

    evaluation_seed: int = 13
    """Of the evaluated episodes, the same for all runs."""

    @property
    def evaluations_off(self) -> Mapping[str, bool]:
        """Whether a setting switches evaluations off, for each that can."""
        never = not self.trainer.books.eval_interval_opt_steps
        return {"play": self.play is None, "trainer.books.eval_interval_opt_steps": never}

    def __post_init__(self) -> None:
        check_declared(self)
        for name in ("seed", "evaluation_seed"):
            if (seed := getattr(self, name)) < 0:
                raise ConfigError(f"{name} must be 0 or more, got {seed}")


def train_sync(
    agent: AgentConfig,
    make_env: MakeBatchEnv,
    config: SyncConfig | None = None,
    *,
    stop: StopCondition | None = None,
    make_eval_env: MakeBatchEnv | None = None,
    make_processor: Callable[[], StepProcessor] | None = None,
    recorder: Recorder | None = None,
    checkpoint_dir: Path | None = None,
    resume: bool = False,
    interrupter: Interrupter | None = None,
    run_config: Mapping[str, object] | None = None,
) -> TrainResult:
    """Train an agent in this process and thread, and return how it went.

    Takes what `train_async` takes that has a meaning here. `Trainer` takes parts of your own.
    """
    require_agent_config(agent)
    config = config or SyncConfig()
    check_can_hold(stop, config.evaluations_off)
    checkpointer, checkpoint = open_checkpoints(
        checkpoint_dir, keep=config.trainer.books.keep_checkpoints, resume=resume, config=run_config
    )
    with ExitStack() as closing:
        if checkpointer:
            closing.callback(checkpointer.unlock)
        env = make_batch_env(make_env)
        closing.callback(env.close)
        context = PolicyContext(seed=derive_seed(config.seed, Role.LEARNER), n_envs=env.n_envs)
        extras = agent.extra_columns(env.spec)
        replay, segment = with_start_columns(config.replay, extras), config.trainer.segment
        processor = make_processor() if make_processor else make_one_step(segment, extras)
        schema = schema_of(processor, env.spec, extras, segment, lookahead=replay.lookahead)
        return Trainer(
            agent.build(env.spec, context),
            env,
            replay.build(schema, derive_seed(config.seed, Role.REPLAY)),
            config.trainer,
            schema=schema,
            processor=processor,
            seed=config.seed,
            evaluator=_make_evaluator(config, make_eval_env or make_env, closing),
            recorder=recorder,
            checkpointer=checkpointer,
            stop=stop,
            interrupter=interrupter,
            run_config=run_config,
            checkpoint=checkpoint,
        ).train()


def _make_evaluator(
    config: SyncConfig, make_env: MakeBatchEnv, closing: ExitStack
) -> EpisodeEvaluator | None:
    if config.play is None:
        return None
    env = make_batch_env(make_env, "make_eval_env")
    seed = derive_seed(config.evaluation_seed, Role.EVALUATION)
    evaluator = EpisodeEvaluator(env, config.play, seed)
    closing.callback(evaluator.close)
    return evaluator
