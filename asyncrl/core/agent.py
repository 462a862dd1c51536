"""What an algorithm promises: to act, to share its model, to learn.

An agent knows nothing of processes, sockets or files. Actors run its `Policy` part, the learner
runs all of it:

    act = policy.act(obs)                    # actor, for all its environments at once
    record = agent.opt(batch)                # learner
    info = agent.model_info(); policy.sync_model(info)

`asyncrl.testing.check_agent` asks whether an agent keeps what is promised here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, SupportsFloat, runtime_checkable

from asyncrl.core.env import EnvSpec
from asyncrl.core.env_checks import shown
from asyncrl.core.errors import ConfigError
from asyncrl.core.messages import ModelInfo
from asyncrl.core.recorder import Record
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.torch_threads import is_limited_by_user, set_torch_threads, torch_threads
from asyncrl.core.types import Array, BoolArray, Columns, Params


@dataclass(frozen=True, slots=True)
class Act:
    """What a policy answers: actions, and any columns it wants stored beside them."""

    action: Array
    extras: Columns = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContext:
    """Where a policy will act; exploration may differ from actor to actor."""

    seed: int
    """For every random choice the policy makes."""

    actor_id: int = 0
    n_actors: int = 1
    n_envs: int = 1
    """Environments this policy acts in at once."""


class SyncModel(Protocol):
    """Hands its parameters over, and takes others'."""

    def model_info(self) -> ModelInfo:
        """Return a snapshot that no later `opt` changes.

        The trainer numbers models by its optimisation steps: whatever `version` and `env_steps` an
        agent gives here, `sync_model` is handed those of the run. An agent need not count.
        """
        ...

    def sync_model(self, info: ModelInfo) -> None:
        """Take all of `info.params`, or raise `ConfigError` and change nothing."""
        ...


class Policy(SyncModel, Protocol):
    """Chooses actions for a batch of observations; `n_envs` rows of them at a time."""

    def act(self, obs: Array) -> Act:
        """Choose an action for each row of `obs`; explores if and only if `training`."""
        ...

    @property
    def training(self) -> bool:
        """Whether `act` explores."""
        ...

    def train(self, mode: bool = True) -> object:
        """Switch exploration on or off, as `torch.nn.Module.train` does."""
        ...

    def record(self) -> Record:
        """Numbers about acting, for instance `exploration_rate`; may be empty."""
        ...


class Agent(Policy, Protocol):
    """A policy that learns."""

    def opt(self, batch: Columns) -> Mapping[str, SupportsFloat]:
        """Do one optimisation step on a batch of `ReplayBuffer.sample` and tell about it.

        What is told is one number for each name, or nothing: `{}`. Torch has one thread, unless
        the agent's settings say otherwise, see `build_agent`.

        The values may be tensors still on their device: the trainer calls `float` on them only
        for the steps it records, so that the others never wait for the device.
        """
        ...

    def state(self) -> Params:
        """Return everything needed to go on learning, as named arrays (a copy)."""
        ...

    def load_state(self, state: Params) -> None:
        """Go on from `state`; raise `CheckpointError`, and change nothing, if it does not fit."""
        ...


@runtime_checkable
class TellsPriorities(Protocol):
    """An agent that prioritized replay can serve."""

    def priorities(self) -> Array:
        """Return the absolute TD error of each row of the newest batch, of shape (batch,).

        A batch of such a replay has a column `weight`, which each row's loss is to be multiplied
        with.
        """
        ...


@runtime_checkable
class Remembers(Protocol):
    """A policy whose actions depend on what it has seen earlier in the same episode.

    What it remembers while training and while it is evaluated are two things: a synchronous run
    evaluates the policy that acts, in the middle of that one's episodes.
    """

    def forget(self, where: BoolArray) -> None:
        """Forget what went before in these of the environments (B,): an episode begins there."""
        ...


@runtime_checkable
class ReusesMemory(Protocol):
    """An agent that can put its state where an older copy was.

    Memory that is new to the process takes longer than the copy itself: 100 MB are copied in 5 ms,
    and in 10 to 200 ms where no copy was before.
    """

    spare: Params
    """Arrays that `state` returned earlier and nobody needs; the next one may return them again.

    Another thread may put them here at any time: take them out at once, and leave nothing.
    """


@runtime_checkable
class CountsEnvSteps(Protocol):
    """An agent with schedules: it is told how far the run has come, before each `opt`."""

    env_steps: int
    """Environment steps of the whole run, as far as the agent knows."""


def acted(policy: Policy, obs: Array) -> Act:
    """Let a policy act, and refuse an answer that is no `Act`."""
    act = policy.act(obs)
    if not isinstance(act, Act):
        raise ConfigError(
            f"a policy's `act` must return Act(action), got {shown(act)}; wrap the actions, as in "
            "`return Act(action)` with `from asyncrl import Act`"
        )
    return act


def optimised(agent: Agent, batch: Columns) -> Mapping[str, SupportsFloat]:
    """Let an agent do one optimisation step, and refuse an answer that has no names."""
    metrics = agent.opt(batch)
    _require_names(
        metrics, agent, "opt", 'return for instance {"loss": loss}, or {} to tell nothing'
    )
    return metrics


def as_number(name: str, value: SupportsFloat) -> float:
    """Return a number that an agent or a policy told; name it if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{name} must be one number, got {shown(value)}; what `opt` or `record` tells is a "
            "number or a tensor of one element: tell the mean of several, and leave text out"
        ) from error


def recorded(policy: Policy) -> Record:
    """Return what a policy tells about acting, and refuse what has no names."""
    metrics = policy.record()
    _require_names(metrics, policy, "record", "return {} to tell nothing")
    return metrics


def _require_names(metrics: object, owner: object, method: str, advice: str) -> None:
    if not isinstance(metrics, Mapping):
        raise ConfigError(
            f"`{method}` of {type(owner).__name__} must return numbers by name, got "
            f"{shown(metrics)}; {advice}"
        )


def forget(policy: Policy, where: BoolArray) -> None:
    """Tell a policy where episodes begin, if it is one that remembers any."""
    if isinstance(policy, Remembers):
        policy.forget(where)


class AgentConfig(Protocol):
    """Builds both sides of one algorithm; a frozen dataclass, so that it can be sent and saved."""

    def build(self, spec: EnvSpec, context: PolicyContext) -> Agent:
        """Make the learner's agent."""
        ...

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> Policy:
        """Make an actor's policy: no optimizer, no targets."""
        ...

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Return the columns that this algorithm adds to rows.

        `Act.extras` holds them, all but `discounted_return`, which the step processor fills.
        """
        ...


def build_agent(config: AgentConfig, spec: EnvSpec, context: PolicyContext) -> Agent:
    """Make the learner's agent, and let torch, where it is loaded, compute with few threads.

    They are as many as the settings have in `threads` (0 leaves it to torch, `auto` begins with
    one), or, without such a field, as many as `build` or OMP_NUM_THREADS sets, or one. Torch would
    take all cores for itself, and one optimisation step beside busy actors then takes ten times as
    long.
    """
    threads = getattr(config, "threads", None)
    if threads == "auto":
        set_torch_threads(1)  # those that the learner starts later flush denormals as it does
    before = torch_threads()
    agent = config.build(spec, context)
    if threads is None:
        untouched = before in {None, torch_threads()}
        threads = int(untouched and not is_limited_by_user())
    if threads:
        set_torch_threads(1 if threads == "auto" else threads)
    return agent


BatchKind = Literal["transitions", "sequences", "trajectories"]
"""What a replay hands out: single transitions, sequences of one episode each that are drawn again
and again, or trajectories, each once."""


@runtime_checkable
class LearnsFrom(Protocol):
    """An agent's config that says which kind of batches `opt` takes.

    A run with a replay that says it hands out another kind is then refused before it starts.
    """

    learns_from: ClassVar[BatchKind]
    """What a replay's `hands_out` must be."""


class PolicyWrapper:
    """Passes everything on to another policy; a subclass changes one thing."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def act(self, obs: Array) -> Act:
        """Let it act."""
        return self._policy.act(obs)

    @property
    def training(self) -> bool:
        """Whether it explores."""
        return self._policy.training

    def train(self, mode: bool = True) -> object:
        """Switch its exploration on or off."""
        return self._policy.train(mode)

    def forget(self, where: BoolArray) -> None:
        """Tell it where episodes begin."""
        forget(self._policy, where)

    def record(self) -> Record:
        """Return what it tells about acting."""
        return self._policy.record()

    def model_info(self) -> ModelInfo:
        """Return its snapshot."""
        return self._policy.model_info()

    def sync_model(self, info: ModelInfo) -> None:
        """Let it take a snapshot."""
        self._policy.sync_model(info)


def evaluation_mode(policy: Policy) -> _EvaluationMode:
    """Switch exploration off inside a `with` block and restore the former mode after it."""
    return _EvaluationMode(policy)


class _EvaluationMode:
    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._was_training = policy.training

    def __enter__(self) -> Policy:
        self._was_training = self._policy.training
        self._policy.train(False)
        return self._policy

    def __exit__(self, *_: object) -> None:
        self._policy.train(self._was_training)


def is_agent_config(agent: object) -> bool:
    """Whether this has what an agent's settings have, or is the class of such."""
    return all(hasattr(agent, name) for name in ("build", "build_policy", "extra_columns"))


def require_agent_config(agent: object) -> None:
    """Refuse what is no agent's settings."""
    complete = is_agent_config(agent)
    if complete and isinstance(agent, type):
        raise ConfigError(f"the agent must be settings, got their class; write {agent.__name__}()")
    if not complete:
        raise ConfigError(
            f"the agent must be settings such as DQNConfig(), got {agent!r:.80}, which has not the "
            "methods build, build_policy and extra_columns of asyncrl/core/agent.py"
        )
