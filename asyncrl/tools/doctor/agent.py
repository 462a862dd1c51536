"""Checks that an agent fulfils the contract of `core/agent.py`. Requires that and no more.

The agent acts in fake environments with its spaces, and learns from a replay of that experience. So
`opt` receives what it would receive in a run: the agent's own columns, sequences or trajectories.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, islice, repeat
from typing import Any, ClassVar, cast

import numpy as np

from asyncrl.actor.inline_actor import InlineActor
from asyncrl.actor.step_processor import make_one_step, schema_of
from asyncrl.core.agent import (
    Agent,
    AgentConfig,
    BatchKind,
    Policy,
    PolicyContext,
    ReturnsPriorities,
    acted,
    as_number,
    evaluation_mode,
    forget,
    optimised,
    require_agent_config,
)
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, EnvStep, PackedSpec
from asyncrl.core.env_checks import shown
from asyncrl.core.errors import AsyncRLError, CheckpointError, ConfigError
from asyncrl.core.replay_buffer import (
    ReplayBufferConfig,
    check_agent_and_replay,
    with_start_columns,
)
from asyncrl.core.segment import DISCOUNTED_RETURN, SegmentConfig
from asyncrl.core.types import Array, Columns, Params
from asyncrl.envs.spaces import random_actions
from asyncrl.fleet.local import pickled
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.sequences import PrioritizedSequenceReplayConfig, SequenceReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.tools.doctor.findings import Finding, fail, ok, raised, warn

_N_ENVS = 6
_BATCH_SIZE = 32
_EPISODE_STEPS = 13
_FIRST_STEPS, _STEPS = 48, 16
"""Steps of all environments before the first batch, and between two batches."""

_SEGMENT = SegmentConfig(length=8)

_REPLAYS: Mapping[BatchKind, ReplayBufferConfig] = {
    "transitions": UniformReplayConfig(capacity=2000, n_step=3),
    "sequences": SequenceReplayConfig(capacity=2000, sequence_length=8, stride=4),
    "trajectories": TrajectoryQueueConfig(capacity=2000),
}
_PRIORITIZED: Mapping[BatchKind, ReplayBufferConfig] = {
    "transitions": PrioritizedReplayConfig(capacity=2000, n_step=3),
    "sequences": PrioritizedSequenceReplayConfig(capacity=2000, sequence_length=8, stride=4),
}

_OBSERVATION = BoxSpec((3,), "float32", np.full(3, -np.inf), np.full(3, np.inf))
_SPACES: Mapping[str, EnvSpec] = {
    "one of 4 choices": EnvSpec(_OBSERVATION, DiscreteSpec(4)),
    "2 quantities": EnvSpec(
        _OBSERVATION,
        BoxSpec((2,), "float32", np.array([-1, 0], np.float32), np.array([1, 5], np.float32)),
    ),
}
"""Spaces in which an agent is checked if only its settings are known."""

_FIRST = "Fix this first: later checks depend on it."

_POLICY = ("act", "training", "train", "record", "model_info", "sync_model")
_AGENT = (*_POLICY, "opt", "state", "load_state")
_SEE = "see asyncrl/core/agent.py"


def check_agent(
    config: AgentConfig, spec: EnvSpec, *, replay: ReplayBufferConfig | None = None
) -> None:
    """Raise `AssertionError` if an agent breaks its contract, `asyncrl/core/agent.py`.

    Takes about a second and starts no process. The message says what was seen, what was expected
    and what to do.

    Args:
        config: The agent's settings, such as `DQNConfig()`.
        spec: Its spaces, such as `EnvConfig(id="CartPole-v1").build().spec`.
        replay: What it learns from; by default a small replay of the kind in `config.learns_from`,
            or of single transitions.
    """
    wrong = [one for one in examine_agent(config, spec, replay=replay) if one.level == "fail"]
    if wrong:
        lines = [f"{one.check}: {one.seen}. {one.advice}".rstrip() for one in wrong]
        name = type(config).__name__
        raise AssertionError("\n".join([f"{name} breaks the contract of agents:", *lines]))


def examine_agent(
    config: AgentConfig,
    spec: EnvSpec,
    *,
    replay: ReplayBufferConfig | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> Iterator[Finding]:
    """Check an agent and yield the findings; takes the arguments of `check_agent`.

    `announce` is called with the name of each check before it begins.
    """
    subject = Subject(config, spec, replay)
    for name, check in _CHECKS.items():
        announce(name)
        try:
            seen = check(subject)
        except _Violation as broken:
            yield (fail if broken.fails else warn)(name, broken.seen, f"{broken.advice}.")
        except Exception as error:  # foreign code may raise anything
            yield raised(name, error, _FIRST)
            return  # the next checks depend on this one
        else:
            if seen:
                yield ok(name, seen)


def examine_anywhere(
    make: AgentConfig | Callable[[], AgentConfig],
    announce: Callable[[str], None] = lambda _: None,
    *,
    spaces: Mapping[str, EnvSpec] | None = None,
) -> Iterator[Finding]:
    """Check an agent in each of these spaces that it supports, and yield the findings.

    The agent is given by its settings or their class. Without `spaces`, two small ones are used.
    `announce` is called with the name of each check before it begins.
    """
    spaces = spaces or _SPACES
    announce("settings")
    try:
        config = make() if isinstance(make, type) else cast(AgentConfig, make)
    except Exception as error:  # foreign code may raise anything
        yield raised("settings", error, _FIRST)
        return
    refusals: list[str] = []
    right: list[str] = []
    wrong: list[str] = []
    for name, spec in spaces.items():
        levels = set()
        try:
            for finding in _examine_in(name, spec, config, announce):
                levels.add(finding.level)
                yield finding
        except _Unsupported as refusal:
            refusals.append(f"{name}: {refusal}")
        else:
            (wrong if "fail" in levels else right).append(name)
    if right and wrong:
        yield warn(
            "spaces",
            f"passes where actions are {right[0]}, fails where they are {wrong[0]}",
            "If it supports only the former, let `build` raise ConfigError for other spaces, as "
            "`n_actions(spec, name)` of asyncrl/agents/parts/networks.py does.",
        )
    if len(refusals) == len(spaces):
        yield fail(
            "spaces",
            "; ".join(refusals),
            "If it supports other spaces, name an environment that has them: asyncrl doctor ENV "
            "--agent module:Class.",
        )


class _Unsupported(Exception):  # a valid answer, not an error
    """Says why an agent does not support some spaces."""


def _examine_in(
    name: str, spec: EnvSpec, config: AgentConfig, announce: Callable[[str], None]
) -> Iterator[Finding]:
    """Check an agent in these spaces. Raise `_Unsupported` if it does not support them."""
    try:
        config.build(spec, PolicyContext(seed=0, n_envs=_N_ENVS))
    except ConfigError as error:
        raise _Unsupported(str(error)) from error
    except Exception as error:  # foreign code may raise anything
        yield raised("settings", error, _FIRST)
        return
    yield ok("spaces", f"actions: {name}")
    yield from examine_agent(config, spec, announce=announce)


class _Violation(Exception):  # ends a check, never leaves this file
    """What violates the contract, and what to do."""

    def __init__(self, seen: str, advice: str, *, fails: bool = True) -> None:
        super().__init__(seen)
        self.seen, self.advice, self.fails = seen, advice, fails


class Subject:
    """The agent under test, the environments it acts in, and the replay it learns from."""

    def __init__(
        self, config: AgentConfig, spec: EnvSpec, replay: ReplayBufferConfig | None = None
    ) -> None:
        self.config = config
        self.spec = spec
        kind: BatchKind = getattr(config, "learns_from", "transitions")
        self.replay = replay or _REPLAYS[kind]
        self.prioritized = None if replay else _PRIORITIZED.get(kind)

    def agent(self, seed: int = 5) -> Agent:
        """Build the learning agent."""
        return self.config.build(self.spec, PolicyContext(seed=seed, n_envs=_N_ENVS))

    def policy(self, seed: int = 5) -> Policy:
        """Build the acting policy."""
        return self.config.build_policy(self.spec, PolicyContext(seed=seed, n_envs=_N_ENVS))

    def obs(self, rows: int = _N_ENVS, seed: int = 0) -> Array:
        """Return random observations."""
        return _observations(self.spec.observation, rows, np.random.default_rng(seed))

    @cached_property
    def batches(self) -> list[Columns]:
        """Return the batches that a replay samples from the policy's experience."""
        return [*islice(self.sampled(self.replay), 8)]

    def sampled(self, replay: ReplayBufferConfig) -> Iterator[Columns]:
        """Yield batches of a new replay, which gets more experience before each."""
        extras = self.config.extra_columns(self.spec)
        replay = with_start_columns(replay, extras)
        processor = make_one_step(_SEGMENT, extras)
        schema = schema_of(processor, self.spec, extras, _SEGMENT, lookahead=replay.lookahead)
        buffer = replay.build(schema, 1)
        env = _FakeEnv(self.spec)
        actor = InlineActor(
            self.agent(),
            env,
            buffer,
            schema=schema,
            segment=_SEGMENT,
            processor=processor,
            seed=2,
        )
        actor.begin_incarnation()
        for n_steps in chain([_FIRST_STEPS], repeat(_STEPS)):
            for _ in range(n_steps):
                actor.run_step()
            yield buffer.sample(_BATCH_SIZE)

    def learn(self, agent: Agent, first: int, last: int) -> None:
        """Optimise on the batches from `first` to `last`, each copied."""
        for batch in self.batches[first:last]:
            optimised(agent, _copied(batch))


class _FakeEnv:
    """Fake environments: observations, rewards and ends are random, whatever the actions."""

    checks_itself: ClassVar[bool] = True
    n_envs: ClassVar[int] = _N_ENVS

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        self._random = np.random.default_rng(3)
        self._steps = np.zeros(_N_ENVS, np.int64)

    def reset(self, seed: int) -> Array:
        return _observations(self.spec.observation, _N_ENVS, self._random)

    def step(self, action: Array) -> EnvStep:
        require_actions(action, self.spec, _N_ENVS)
        self._steps += 1
        obs = _observations(self.spec.observation, _N_ENVS, self._random)
        terminated = self._random.random(_N_ENVS) < 0.05
        truncated = self._steps >= _EPISODE_STEPS
        self._steps[terminated | truncated] = 0
        final = _observations(self.spec.observation, _N_ENVS, self._random)
        ended = (terminated | truncated).reshape(-1, *[1] * (obs.ndim - 1))
        reward = self._random.normal(size=_N_ENVS).astype(np.float32)
        return EnvStep(obs, reward, terminated, truncated, np.where(ended, final, obs))

    def close(self) -> None:
        """Nothing to close."""


def _observations(space: BoxSpec | PackedSpec, rows: int, random: np.random.Generator) -> Array:
    if isinstance(space, BoxSpec):
        return random_actions(space, (rows,), random)
    return space.pack({name: random_actions(box, (rows,), random) for name, box in space.fields})


# --- the checks ----------------------------------------------------------------------------------


def _settings(subject: Subject) -> str:
    require_agent_config(subject.config)
    pickled(subject.config)
    check_agent_and_replay(subject.config, subject.replay)
    for one, method, names in (
        (subject.agent(), "build", _AGENT),
        (subject.policy(), "build_policy", _POLICY),
    ):
        if missing := [name for name in names if not hasattr(one, name)]:
            raise _Violation(
                f"`{method}` returns {type(one).__name__}, which lacks {', '.join(missing)}",
                f"Add it; {_SEE} for its contract",
            )
    return f"{type(subject.config).__name__} can be sent, and builds agents and policies"


def require_actions(action: object, spec: EnvSpec, rows: int) -> None:
    """Raise `_Violation` unless these are valid actions for `rows` observations."""
    space = spec.action
    if not isinstance(action, np.ndarray):
        raise _Violation(f"the action is {shown(action)}", "Put a numpy array into `Act`")
    kinds = "iufb" if np.dtype(space.dtype).kind == "f" else "iu"
    wanted = (rows, *space.shape)
    if action.shape != wanted or action.dtype.kind not in kinds:
        raise _Violation(
            f"for {rows} observations `act` returned actions of shape {action.shape} and dtype "
            f"{action.dtype}, expected {wanted} and {space.dtype}",
            "Return one action for each row of `obs`, as `spec.action` describes it",
        )
    low, high = (0, space.n - 1) if isinstance(space, DiscreteSpec) else (space.low, space.high)
    if not ((action >= low) & (action <= high)).all():
        raise _Violation(
            f"`act` returned {shown(action)}, outside the bounds {shown(low)} to {shown(high)}",
            "Clip or squash actions to the bounds of `spec.action`; discrete actions count from 0",
        )


def _acting(subject: Subject) -> str:
    agent = subject.agent()
    for policy in (agent, subject.policy()):
        for training, rows in ((True, _N_ENVS), (False, _N_ENVS), (False, 1)):
            policy.train(training)
            if policy.training is not training:
                raise _Violation(
                    f"after `train({training})`, `training` is {policy.training!r}",
                    "Make `training` return what `train(mode)` was called with",
                )
            obs = subject.obs(rows)
            given = obs.copy()
            forget(policy, np.ones(rows, np.bool_))
            require_actions(acted(policy, obs).action, subject.spec, rows)
            if not np.array_equal(given, obs, equal_nan=True):
                raise _Violation("`act` changed the observations", "Copy `obs` before changing it")
    return "returns valid actions, for any number of rows"


def _evaluating(subject: Subject) -> str:
    policy, obs = subject.policy(), subject.obs(9)
    if not np.array_equal(_greedy(policy, obs), _greedy(policy, obs)):
        raise _Violation(
            "with `train(False)` the same observations got different actions in the second call",
            "Explore only if `training`; use no random numbers otherwise",
        )
    return "explores in training only"


def _repeating(subject: Subject) -> str:
    def actions(seed: int) -> list[bytes]:
        policy = subject.policy(seed)
        policy.sync_model(subject.agent(1).model_info())
        return [acted(policy, subject.obs(seed=i)).action.tobytes() for i in range(5)]

    if actions(1) != actions(1):
        raise _Violation(
            "two policies with the same seed and model acted differently",
            "Use one generator, seeded with `context.seed`, for every random choice",
            fails=False,
        )
    return "the same seed gives the same actions"


def _columns(subject: Subject) -> str:
    policy = subject.policy()
    policy.train()
    extras = acted(policy, subject.obs()).extras
    declared = {c.name: c.shape for c in subject.config.extra_columns(subject.spec)}
    declared.pop(DISCOUNTED_RETURN, None)  # the step processor fills it
    given = {name: np.shape(value) for name, value in extras.items()}
    wanted = {name: (_N_ENVS, *shape) for name, shape in declared.items()}
    if given != wanted:
        raise _Violation(
            f"`Act.extras` held the columns {given or 'none'}, but `extra_columns` declares "
            f"{wanted or 'none'}, with one row per observation",
            "Name the same columns in both, and fill each of them whenever `training`",
        )
    return f"own columns: {', '.join(declared) or 'none'}"


def _records(subject: Subject) -> str:
    for policy in (subject.agent(), subject.policy()):
        acted(policy, subject.obs())
        returned = policy.record()
        if not isinstance(returned, Mapping):
            raise _Violation(
                f"`record` returned {shown(returned)}", "Return numbers by name, or {}"
            )
        for name, value in returned.items():
            as_number(name, value)
    return ""


def _learning(subject: Subject) -> str:
    batches, agent = subject.batches, subject.agent()
    info = agent.model_info()
    _require_arrays("`model_info().params`", info.params)
    before = _copied(info.params)
    for batch in batches[:3]:
        for name, value in optimised(agent, _copied(batch)).items():
            as_number(name, value)
    if not _same(info.params, before):
        raise _Violation(
            "`opt` changed the arrays of a snapshot that `model_info` had returned before",
            "Return copies: actors and checkpoints still read them",
        )
    if wrong := [n for n, v in agent.model_info().params.items() if not np.isfinite(v).all()]:
        raise _Violation(
            f"after three batches, {wrong[0]} of the model contains NaN or infinity",
            "Look for a division by zero, or lower the learning rate",
        )
    return "learns, and keeps its snapshots unchanged"


def _models(subject: Subject) -> str:
    agent, policy = subject.agent(1), subject.policy(2)
    subject.learn(agent, 0, 3)
    info = agent.model_info()
    before = _copied(info.params)
    policy.sync_model(info)
    if not _same(policy.model_info().params, before):
        raise _Violation(
            "after `sync_model`, the policy's own `model_info` returned a different model",
            "Load all of `info.params` in `sync_model`, and return all of it in `model_info`",
        )
    obs = subject.obs(20)
    if not np.array_equal(_greedy(agent, obs), _greedy(policy, obs)):
        raise _Violation(
            "agent and policy act differently with the same model and no exploration",
            "Put everything that `act` depends on into `model_info().params`",
        )
    taker = subject.agent(3)
    taker.sync_model(info)
    subject.learn(taker, 3, 5)
    if not _same(info.params, before):
        raise _Violation(
            "after `sync_model`, `opt` changed the arrays that were passed to it",
            "Copy the arrays of `info.params`: the agent does not own them",
        )
    return "policies load the learner's model and act with it"


def _wrong_models(subject: Subject) -> str:
    policy, fitting = subject.policy(), subject.agent(9).model_info()
    before = _copied(policy.model_info().params)

    def now() -> Params:
        return policy.model_info().params

    for what, params in _misfits(fitting.params).items():
        take = partial(policy.sync_model, replace(fitting, params=params))
        _require_refusal("sync_model", "model", what, take, ConfigError)
        if not _same(now(), before):
            raise _Violation(
                f"`sync_model` rejected a model with {what}, but loaded a part of it",
                "Compare all names and shapes before the first change",
            )
    return "models that do not fit are rejected"


def _parts(subject: Subject) -> str:
    torch_agent = sys.modules.get("asyncrl.agents.parts.torch_agent")  # not imported for this
    agent: Any = subject.agent()
    if torch_agent is None or not isinstance(agent, torch_agent.TorchAgent):
        return ""
    for name, part in agent.parts.items():
        held = getattr(agent, name, part)
        if held is not part and isinstance(held, torch_agent.Part):
            raise _Violation(
                f"`self.{name}` and `self.parts[{name!r}]` are different objects, and the latter "
                "is saved; a base class has put it there, and may still use it",
                "Give the new object another name and put it into `self.parts`; or replace "
                f"the old one in `self.parts` and in everything that uses the base's `{name}`, "
                "such as `self.updater`",
            )
    return ""


def _states(subject: Subject) -> str:
    agent = subject.agent()
    fresh = _copied(agent.state())
    subject.learn(agent, 0, 2)
    state = agent.state()
    _require_arrays("`state()`", state)
    before = _copied(state)
    subject.learn(agent, 2, 4)
    if not _same(state, before):
        raise _Violation("`opt` changed a state returned before", "Return copies from `state`")
    now = _copied(agent.state())
    for what, params in {"no array at all": {}, **_misfits(now, fresh)}.items():
        load = partial(agent.load_state, params)
        _require_refusal("load_state", "state", what, load, CheckpointError)
        if not _same(agent.state(), now):
            raise _Violation(
                f"`load_state` rejected a state with {what}, but loaded a part of it",
                "Compare all names and shapes before the first change",
            )
    return "states are copies, and those that do not fit are rejected"


def _resuming(subject: Subject) -> str:
    first, twin, other = subject.agent(1), subject.agent(1), subject.agent(2)
    for agent in (first, twin):
        subject.learn(agent, 0, 3)
    if not _same(first.state(), twin.state()):
        raise _Violation(
            "two agents with the same seed learned differently from the same batches",
            "Use one generator, seeded with `context.seed`, for every random choice, and "
            "initialise torch's layers inside `with seeded(context.seed)`",
            fails=False,
        )
    subject.learn(other, 5, 7)
    other.load_state(_copied(first.state()))
    if not _same(first.state(), other.state()):
        raise _Violation(
            "after `load_state(state)`, `state()` returned something different",
            "Load everything in `load_state` that `state` returns",
        )
    for agent in (first, other):
        subject.learn(agent, 3, 6)
    if not _same(first.state(), other.state()):
        raise _Violation(
            "an agent resumed from a state learned differently from the agent that had saved it",
            "Put everything that `opt` depends on into `state`: optimizer moments, target "
            "networks, counters, generators",
        )
    return "resumes from its state bit by bit"


def _priorities(subject: Subject) -> str:
    agent = subject.agent()
    if not isinstance(agent, ReturnsPriorities) or subject.prioritized is None:
        return ""
    batch = next(subject.sampled(subject.prioritized))
    optimised(agent, _copied(batch))
    try:
        returned, wanted = agent.priorities(), batch["index"].shape
    except ConfigError as error:  # a subclass may inherit the method without having priorities
        return f"returns no priorities: {error}"
    if (
        np.shape(returned) != wanted
        or not (np.isfinite(returned) & (np.asarray(returned) >= 0)).all()
    ):
        raise _Violation(
            f"`priorities` returned {shown(returned)} of shape {np.shape(returned)}, expected "
            f"{wanted} numbers, each 0 or more",
            "Return the absolute TD error of each row of the newest batch",
        )
    return "returns priorities; prioritized replay can use it"


def _memory(subject: Subject) -> str:
    if not hasattr(subject.policy(), "forget"):
        return ""
    model = subject.agent(1).model_info()

    def actions(*, evaluated: bool) -> list[bytes]:
        policy = subject.policy()
        policy.sync_model(model)
        policy.train()
        chosen = []
        for step in range(6):
            chosen.append(acted(policy, subject.obs(seed=step)).action.tobytes())
            if evaluated:
                _greedy(policy, subject.obs(9, seed=100 + step))
        return chosen

    if actions(evaluated=False) == actions(evaluated=False) != actions(evaluated=True):
        raise _Violation(
            "an evaluation in the middle of training episodes changed the actions that followed "
            "in them",
            "Keep separate recurrent states for training and evaluation",
        )
    return "keeps separate recurrent states for training and evaluation"


def _spare(subject: Subject) -> str:
    agent = subject.agent()
    if not hasattr(agent, "spare"):
        return ""
    subject.learn(agent, 0, 2)
    old = agent.state()
    subject.learn(agent, 2, 4)
    expected = _copied(agent.state())
    agent.spare = old
    if not _same(agent.state(), expected) or agent.spare:
        raise _Violation(
            "with an older state in `spare`, `state` returned a different state, or left `spare` "
            "filled",
            "Clear `spare` first and overwrite every array; or do without `spare`",
        )
    return ""


_CHECKS: Mapping[str, Callable[[Subject], str]] = {
    "settings": _settings,
    "act": _acting,
    "evaluation": _evaluating,
    "columns": _columns,
    "record": _records,
    "opt": _learning,
    "model": _models,
    "wrong model": _wrong_models,
    "parts": _parts,
    "state": _states,
    "resume": _resuming,
    "seed": _repeating,
    "priorities": _priorities,
    "memory": _memory,
    "spare": _spare,
}
"""The checks in order: each depends on those before."""


# --- helpers -------------------------------------------------------------------------------------


def _greedy(policy: Policy, obs: Array) -> Array:
    """Return a policy's actions at the start of episodes, without exploration."""
    with evaluation_mode(policy):
        forget(policy, np.ones(len(obs), np.bool_))
        return acted(policy, obs).action


def _require_arrays(what: str, arrays: object) -> None:
    """Raise `_Violation` unless these are named arrays of plain numbers."""
    if not isinstance(arrays, Mapping):
        raise _Violation(f"{what} is {shown(arrays)}", "Return numpy arrays by name")
    for name, value in arrays.items():
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            raise _Violation(
                f"{what} holds {name!r}: {type(value).__name__}",
                "Return numpy arrays of numbers by name; `np.array(value)` turns a number into one",
            )


def _require_refusal(
    method: str, thing: str, what: str, take: Callable[[], object], kind: type[AsyncRLError]
) -> None:
    """Raise `_Violation` unless arrays that do not fit are rejected as the contract says."""
    try:
        take()
    except kind:
        return
    except Exception as error:
        raise _Violation(
            f"`{method}` of a {thing} with {what} raised {type(error).__name__}: {error}",
            f"Compare names and shapes, and raise `{kind.__name__}` that names what does not fit",
        ) from error
    raise _Violation(
        f"`{method}` accepted a {thing} with {what}",
        f"Compare names and shapes, and raise `{kind.__name__}` before changing anything",
    )


def _misfits(fitting: Params, always: Params | None = None) -> dict[str, Params]:
    """Return variants that do not fit; `always` are the arrays that every variant contains."""
    wrong: dict[str, Params] = {"an unknown array": {**fitting, "strange": np.zeros(3)}}
    for name in always or fitting:
        value = fitting[name]
        wrong[f"{name!r} missing"] = {n: v for n, v in fitting.items() if n != name}
        if value.ndim and value.dtype.kind == "f":
            larger = np.zeros((*value.shape, 2), value.dtype)
            wrong[f"{name!r} of shape {larger.shape}"] = {**fitting, name: larger}
    return wrong


def _copied(arrays: Params) -> dict[str, Array]:
    return {name: value.copy() for name, value in arrays.items()}


def _same(a: Params, b: Params) -> bool:
    """Whether these are the same numbers; NaN equals NaN."""
    return set(a) == set(b) and all(
        np.array_equal(a[name], b[name]) or a[name].tobytes() == b[name].tobytes() for name in a
    )
