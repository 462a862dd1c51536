"""The contract of an algorithm: it acts, shares its model, and learns.

An agent knows nothing about processes, sockets or files. Actors run its `Policy` part, the learner
runs all of it:

    act = policy.act(obs)                    # actor, for all its environments at once
    record = agent.opt(batch)                # learner
    info = agent.model_info(); policy.sync_model(info)

`asyncrl.testing.check_agent` checks whether an agent fulfils this contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, SupportsFloat, cast, runtime_checkable

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
    """The result of `act`: actions, and extra columns to store with them."""

    action: Array
    extras: Columns = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContext:
    """Where a policy acts; exploration may differ between actors."""

    seed: int
    """Seed of all random choices of the policy."""

    actor_id: int = 0
    n_actors: int = 1
    n_envs: int = 1
    """Number of environments that it acts in at once."""


class SyncModel(Protocol):
    """Returns its parameters, and loads those of another model."""

    def model_info(self) -> ModelInfo:
        """Return a snapshot that no later `opt` changes.

        The trainer numbers models by its optimisation steps: it replaces the `version` and
        `env_steps` that an agent returns here by those of the run. An agent need not count.
        """
        ...

    def sync_model(self, info: ModelInfo) -> None:
        """Load all of `info.params`, or raise `ConfigError` and change nothing."""
        ...


class Policy(SyncModel, Protocol):
    """Chooses actions for a batch of observations, `n_envs` rows at a time.

    It may also have

        forget(where)     clears its memory of the environments in `where` (B,), where an episode
                          begins; keep separate memories for training and evaluation, since a
                          synchronous run evaluates the acting policy in the middle of its episodes
        spread(n_actors)  takes the place on a ladder of exploration that its actor has in a run
                          with this number of actors
        env_steps         environment steps of the whole run, as far as known, see `CountsEnvSteps`
    """

    def act(self, obs: Array) -> Act:
        """Choose an action for each row of `obs`; explore if and only if `training`."""
        ...

    @property
    def training(self) -> bool:
        """Whether `act` explores."""
        ...

    def train(self, mode: bool = True) -> object:
        """Switch exploration on or off, as `torch.nn.Module.train` does."""
        ...

    def record(self) -> Record:
        """Return metrics about acting, for instance `exploration_rate`; may be empty."""
        ...


class Agent(Policy, Protocol):
    """A policy that learns.

    It may also have

        priorities()  see `ReturnsPriorities`
        spare         arrays of an earlier `state` that are free again, which the next `state` may
                      reuse: 100 MB are copied in 5 ms to memory that was used before, and in 10 to
                      200 ms to new memory. Another thread may put them here at any time: take them
                      out at once, and leave none
        join(ranks)   see `core/ranks.py`
    """

    def opt(self, batch: Columns) -> Mapping[str, SupportsFloat]:
        """Do one optimisation step on a batch of `ReplayBuffer.sample`, and return its metrics.

        Metrics are one number per name, or none: `{}`. Torch uses one thread, unless the agent's
        settings say otherwise, see `build_agent`.

        The values may be tensors on the agent's device: the trainer calls `float` only on those
        that it records, so that other steps do not wait for the device.
        """
        ...

    def state(self) -> Params:
        """Return a copy of everything needed to continue learning, as named arrays."""
        ...

    def load_state(self, state: Params) -> None:
        """Load `state`; raise `CheckpointError`, and change nothing, if it does not fit."""
        ...


@runtime_checkable
class ReturnsPriorities(Protocol):
    """An agent that works with prioritized replay."""

    def priorities(self) -> Array:
        """Return the absolute TD error of each row of the newest batch, of shape (batch,).

        A batch of such a replay has a column `weight`: multiply each row's loss by it.
        """
        ...


class CountsEnvSteps(Protocol):
    """A policy or an agent with schedules; the trainer sets `env_steps` before each `opt`."""

    env_steps: int
    """Environment steps of the whole run, as far as the agent knows."""


def acted(policy: Policy, obs: Array) -> Act:
    """Call `act` of a policy; raise if it does not return an `Act`."""
    act = policy.act(obs)
    if not isinstance(act, Act):
        raise ConfigError(
            f"a policy's `act` must return Act(action), got {shown(act)}; wrap the actions, as in "
            "`return Act(action)` with `from asyncrl import Act`"
        )
    return act


def optimised(agent: Agent, batch: Columns) -> Mapping[str, SupportsFloat]:
    """Call `opt` of an agent; raise if it does not return metrics by name."""
    metrics = agent.opt(batch)
    _require_names(
        metrics, agent, "opt", 'return for instance {"loss": loss}, or {} to record nothing'
    )
    return metrics


def as_number(name: str, value: SupportsFloat) -> float:
    """Return a metric as a float; raise an error that names it if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{name} must be one number, got {shown(value)}; return a number or a tensor of one "
            "element: take the mean of several values, and leave out text"
        ) from error


def recorded(policy: Policy) -> Record:
    """Call `record` of a policy; raise if it does not return metrics by name."""
    metrics = policy.record()
    _require_names(metrics, policy, "record", "return {} to record nothing")
    return metrics


def _require_names(metrics: object, owner: object, method: str, advice: str) -> None:
    if not isinstance(metrics, Mapping):
        raise ConfigError(
            f"`{method}` of {type(owner).__name__} must return numbers by name, got "
            f"{shown(metrics)}; {advice}"
        )


def forget(policy: Policy, where: BoolArray) -> None:
    """Clear a policy's memory where episodes begin, if it has one."""
    method = getattr(policy, "forget", None)
    if method is not None:
        method(where)


BuildPolicy = Callable[[EnvSpec, PolicyContext], Policy]
"""Builds a policy for environments of a kind; can be sent to other processes."""


class AgentConfig(Protocol):
    """Builds both sides of an algorithm; a frozen dataclass, so that it can be sent and saved.

    It may declare by a class attribute `learns_from` which `BatchKind` its agent's `opt` takes. A
    run with a replay of another `batch_kind` is then refused before it starts.
    """

    def build(self, spec: EnvSpec, context: PolicyContext) -> Agent:
        """Build the learner's agent."""
        ...

    def build_policy(self, spec: EnvSpec, context: PolicyContext) -> Policy:
        """Build an actor's policy: no optimizer, no target networks."""
        ...

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Return the columns that this algorithm adds to rows.

        `Act.extras` must contain them, except `discounted_return`, which the step processor fills.
        """
        ...


def build_agent(config: AgentConfig, spec: EnvSpec, context: PolicyContext) -> Agent:
    """Build the learner's agent, and limit torch's threads, if torch is loaded.

    Their number is the setting `threads` (0 leaves it to torch, `auto` begins with one). Without
    such a field, it is what `build` or OMP_NUM_THREADS sets, or one. By default torch would use all
    cores, and an optimisation step beside busy actors would take ten times as long.
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
"""What a replay returns: single transitions; sequences from one episode each, sampled repeatedly;
or trajectories, each once."""


class PolicyWrapper:
    """Passes all calls on to another policy; a subclass changes one of them."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @property
    def wrapped(self) -> Policy:
        """The other policy."""
        return self._policy

    def act(self, obs: Array) -> Act:
        """Call its `act`."""
        return self._policy.act(obs)

    @property
    def training(self) -> bool:
        """Whether it explores."""
        return self._policy.training

    def train(self, mode: bool = True) -> object:
        """Switch its exploration on or off."""
        return self._policy.train(mode)

    def forget(self, where: BoolArray) -> None:
        """Clear its memory where episodes begin."""
        forget(self._policy, where)

    def record(self) -> Record:
        """Return its metrics."""
        return self._policy.record()

    def model_info(self) -> ModelInfo:
        """Return its snapshot."""
        return self._policy.model_info()

    def sync_model(self, info: ModelInfo) -> None:
        """Load a snapshot into it."""
        self._policy.sync_model(info)


def counter_of(policy: Policy) -> CountsEnvSteps | None:
    """Return the policy inside its wrappers if it counts environment steps, else None."""
    while isinstance(policy, PolicyWrapper):
        policy = policy.wrapped
    return cast(CountsEnvSteps, policy) if hasattr(policy, "env_steps") else None


def evaluation_mode(policy: Policy) -> _EvaluationMode:
    """Switch exploration off in a `with` block, and restore the previous mode after it."""
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
    """Whether this has the methods of an agent's config, or is a class with them."""
    return all(hasattr(agent, name) for name in ("build", "build_policy", "extra_columns"))


def require_agent_config(agent: object) -> None:
    """Raise if this is not an agent's config."""
    complete = is_agent_config(agent)
    if complete and isinstance(agent, type):
        raise ConfigError(f"the agent must be a config, got its class; write {agent.__name__}()")
    if not complete:
        raise ConfigError(
            f"the agent must be a config such as DQNConfig(), got {agent!r:.80}, which lacks the "
            "methods build, build_policy and extra_columns of asyncrl/core/agent.py"
        )
