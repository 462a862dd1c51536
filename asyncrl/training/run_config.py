"""The whole configuration of a run, with the environment by name: the content of `config.yaml`.

The command line saves it beside a run's results, and resumes from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from asyncrl.agents.dqn import DQNConfig
from asyncrl.core.agent import AgentConfig
from asyncrl.core.declared import COMMON, Count, CountOrOff, Finite, PositiveOrOff
from asyncrl.core.errors import ConfigError
from asyncrl.core.replay_buffer import transitions_per_sample
from asyncrl.core.settings import T, from_plain, to_plain
from asyncrl.envs.gym import EnvConfig
from asyncrl.learner.stop_conditions import (
    AnyOf,
    MaxEnvSteps,
    MaxOptSteps,
    MaxSeconds,
    ReachesUpperBound,
    StopCondition,
    StopFunction,
    check_can_hold,
)
from asyncrl.training.config import AsyncConfig
from asyncrl.training.named_parts import NamedParts
from asyncrl.training.offline import OfflineConfig
from asyncrl.training.synchronous import SyncConfig, TrainerConfig

ALSO_CALLED = {
    "env.id": "env",
    "env.kwargs": "env_kwargs",
    "env.n_envs": "envs_per_actor",
    "env.info": "env_info",
    "env.wrappers": "env_wrappers",
    "env.vectorization": "vectorization",
}
"""Names in `EnvConfig` -> names in a file."""


def check_names(data: object, name: str = "") -> None:
    """Reject settings of a file that have another name here, and suggest that name."""
    if name in ALSO_CALLED:
        raise ConfigError(f"{name}: there is no such setting; did you mean {ALSO_CALLED[name]}?")
    if isinstance(data, Mapping):
        for key, value in data.items():
            check_names(value, f"{name}.{key}" if name else str(key))


def save_yaml(config: object, path: Path) -> None:
    """Write a dataclass as YAML."""
    write_yaml(to_plain(config), path)


def load_yaml(cls: type[T], path: Path) -> T:
    """Load a `cls` from a YAML file; an empty file gives the defaults."""
    try:
        data = read_yaml(path)
        check_names(data)
        return from_plain(cls, {} if data is None else data)
    except ConfigError as error:
        raise ConfigError(f"cannot load {path}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(AsyncConfig):
    """The settings of a run: those of `AsyncConfig`, and agent, environment, mode and limits."""

    mode: Annotated[Literal["async", "sync", "offline"], COMMON] = "async"
    """`async`: actors step environments while the learner learns. `sync`: both take turns in one
    process, bit for bit reproducible, with `actors * envs_per_actor` environments and the same
    samples per insert. `offline`: learns from `data`."""

    data: Annotated[Path | None, COMMON] = None
    """Data for `offline`: the directory of a run, of its checkpoints, or of a saved replay."""

    actors: Annotated[Count, COMMON] = 2
    """Number of actor processes. `auto` chooses it by short trial runs, together with environments
    per actor and segment length; values given by a flag are kept."""

    agent: AgentConfig = field(default_factory=DQNConfig)
    """The algorithm and its settings."""

    env: Annotated[str, COMMON] = "CartPole-v1"
    """A Gymnasium id, `package:ID` if another package registers it, `envpool:ID`, or
    `module:factory` of a function that returns an environment. Atari games, `ALE/...`, get the
    usual preprocessing."""

    env_kwargs: Annotated[Mapping[str, Any], COMMON] = field(default_factory=dict)
    """Keyword arguments of the environment."""

    eval_env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment in evaluations, if they differ."""

    env_schedule: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Curriculum, in a YAML file only: a number of environment steps -> the keyword arguments of
    the training environments from then on. They override `env_kwargs`. Evaluations keep theirs."""

    env_info: tuple[str, ...] = ()
    """Numbers of the environment's info to record for each episode, by key: its last value, as
    `distance`, or a `sum:`, `mean:`, `min:` or `max:` over the episode, as `sum:energy`. Success
    is recorded without being listed."""

    env_wrappers: tuple[str, ...] = ()
    """Wrappers to apply to each environment, the first one innermost, by import path:
    `module:Wrapper`, or with settings `module:Wrapper(name=value)`. With `vectorization=native`
    they wrap the whole vector environment."""

    envs_per_actor: Annotated[Count, COMMON] = 8
    """Environments that each actor steps together."""

    vectorization: Literal["batch", "native"] = "batch"
    """`batch` steps single environments one after another; `native` uses the environment's own
    vector form."""

    parts: NamedParts = field(default_factory=NamedParts)
    """Custom parts of the run, by import path."""

    max_env_steps: Annotated[CountOrOff, COMMON] = 0
    """Stop after this number of environment steps of all actors. 0 disables."""

    max_opt_steps: Annotated[CountOrOff, COMMON] = 0
    """Stop after this number of optimisation steps. 0 disables."""

    max_seconds: Annotated[PositiveOrOff, COMMON] = 0.0
    """Stop this number of seconds after the first environment step; the start of actors does not
    count. The evaluation of the last model comes after it, for `evaluate.final_timeout_s` at most.
    0 disables."""

    stop_at_return: Annotated[Finite | None, COMMON] = None
    """Stop when an evaluation reaches this mean return. None disables."""

    video_interval_opt_steps: CountOrOff = 0
    """Optimisation steps between two films. The next evaluation plays one more episode, and writes
    it as `videos/OPT_STEPS.mp4` into the run directory; its score arrives that much later. Needs
    the extra `video`. 0 disables."""

    grace_s: PositiveOrOff = 30.0
    """Seconds until a scheduler sends SIGKILL after SIGTERM or SIGHUP. The run ends within this
    time: one second before, it aborts whatever still runs. 0 disables."""

    def env_config(self) -> EnvConfig:
        """Return the environments of one actor."""
        return EnvConfig(
            id=self.env,
            kwargs=dict(self.env_kwargs),
            n_envs=self.envs_per_actor,
            vectorization=self.vectorization,
            info=self.env_info,
            wrappers=self.env_wrappers,
        )

    def eval_env_config(self) -> EnvConfig:
        """Return the environments of evaluations."""
        config = self.env_config()
        return replace(config, kwargs={**config.kwargs, **self.eval_env_kwargs})

    def sync_config(self) -> SyncConfig:
        """Return the settings of a synchronous run that samples each transition equally often.

        It assumes the environments of all actors together, see `sync_env_config`.
        """
        if self.inference != "actor":
            raise ConfigError(
                f"inference is {self.inference!r}, but mode=sync has no actors: its learner acts; "
                "leave it at actor"
            )
        return SyncConfig(
            seed=self.seed,
            replay=self.replay,
            trainer=self._sync_trainer(),
            evaluate=self.evaluate,
            record=self.record,
            save=self.save,
        )

    def sync_env_config(self) -> EnvConfig:
        """Return the environments of all actors together."""
        return replace(self.env_config(), n_envs=self.actors * self.envs_per_actor)

    def _sync_trainer(self) -> TrainerConfig:
        samples, batch_size = self.for_agent(self.agent).limiter.ratio, self.trainer.batch_size
        if self.replay.once:
            return TrainerConfig(batch_size=batch_size, segment=self.segment)
        if not samples:
            raise ConfigError(
                "limiter.samples_per_insert is off, which does not define how often mode=sync "
                "learns; set it"
            )
        stride = transitions_per_sample(self.replay)
        per_env_step = Fraction(samples / batch_size).limit_denominator(100_000) / stride
        single = self.replay.lookahead == self.segment.frame_stack == 1
        return TrainerConfig(
            batch_size=batch_size,
            opt_interval_env_steps=per_env_step.denominator,
            opt_steps_per_interval=per_env_step.numerator,
            warmup_env_steps=self.limiter.min_size * stride,
            segment=None if single else self.segment,
        )

    def offline_config(self) -> tuple[Path, OfflineConfig]:
        """Return the data of an offline run, and its settings."""
        if self.data is None:
            raise ConfigError("mode=offline learns from data, but data is not set; set it")
        return self.data, OfflineConfig(
            seed=self.seed,
            replay=self.replay,
            batch_size=self.trainer.batch_size,
            evaluate=self.evaluate,
            record=self.record,
            save=self.save,
        )

    def stop_condition(self) -> StopCondition | None:
        """Return the limits that are set, combined; reject one that can never be reached."""
        conditions: list[StopCondition | StopFunction] = []
        if self.max_env_steps:
            conditions.append(MaxEnvSteps(self.max_env_steps))
        if self.max_opt_steps:
            conditions.append(MaxOptSteps(self.max_opt_steps))
        if self.max_seconds:
            conditions.append(MaxSeconds(self.max_seconds))
        if self.stop_at_return is not None:
            bound = ReachesUpperBound("eval_reward", self.stop_at_return)
            check_can_hold(bound, self.evaluations_off, "stop_at_return")
            conditions.append(bound)
        if (own := self.parts.make_stop()) is not None:
            check_can_hold(own, self.evaluations_off, "parts.stop")
            conditions.append(own)
        return AnyOf(*conditions) if conditions else None


Anchor = Any  # str | None, which PyYAML's stubs do not declare


def read_yaml(path: Path) -> object:
    """Return the content of a file, None if it is empty; raise `ConfigError` for invalid YAML.

    Duplicate keys are rejected too: PyYAML would silently use the last one.
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
    # In ASCII: with allow_unicode, PyYAML cannot read back some line separators that it writes.
    path.write_text(yaml.safe_dump(plain, sort_keys=False), encoding="ascii")


_MERGE = "tag:yaml.org,2002:merge"


class _Strict(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Anchor) -> yaml.MappingNode:
        # Checked here, because later the keys that `<<` merges in are among the others.
        node = super().compose_mapping_node(anchor)
        first: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            name = str(key.value)
            if first.setdefault(name, key) is not key:
                lines = (one.start_mark.line + 1 for one in (first[name], key))
                raise ConfigError(
                    f"{name!r} is given twice, in lines {' and '.join(map(str, lines))}; merge the "
                    "two"
                )
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # PyYAML 6.0.4 lets the last mapping of `<<: [*a, *b]` win, not the first one.
        merges = [value for key, value in node.value if key.tag == _MERGE]
        node.value = [pair for pair in node.value if pair[0].tag != _MERGE]
        super().flatten_mapping(node)
        for value in merges:
            for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(one, yaml.MappingNode):
                    raise ConfigError(f"line {one.start_mark.line + 1}: << needs a mapping")
                self.flatten_mapping(one)
                node.value = one.value + node.value
