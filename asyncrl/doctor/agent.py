"""Does an agent keep what `core/agent.py` promises? Asks for that, and for no more.

It plays in make-believe environments of its spaces and learns from a replay of what it did there,
so `opt` is handed what a run would hand it: the agent's own columns, sequences or trajectories.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar, cast

import numpy as np

from asyncrl.actor.step_processor import make_one_step, schema_of
from asyncrl.core.agent import (
    Agent,
    AgentConfig,
    BatchKind,
    LearnsFrom,
    Policy,
    PolicyContext,
    Remembers,
    ReusesMemory,
    TellsPriorities,
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
from asyncrl.doctor.findings import Finding, fail, ok, raised, warn
from asyncrl.envs.spaces import random_actions
from asyncrl.replay.prioritized import PrioritizedReplayConfig
from asyncrl.replay.sequences import PrioritizedSequenceReplayConfig, SequenceReplayConfig
from asyncrl.replay.trajectories import TrajectoryQueueConfig
from asyncrl.replay.uniform import UniformReplayConfig
from asyncrl.supervision.local import pickled
from asyncrl.training.inline_actor import InlineActor

_N_ENVS = 6
_BATCH_SIZE = 32
_EPISODE_STEPS = 13
_FIRST_STEPS, _STEPS = 48, 16
"""Of all environments, before the first batch and between two."""

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
"""Where an agent is examined of which only the settings are known."""

_FIRST = "Correct that first: what else is asked relies on it."

_POLICY = ("act", "training", "train", "record", "model_info", "sync_model")
_AGENT = (*_POLICY, "opt", "state", "load_state")
_SEE = "see asyncrl/core/agent.py"


def check_agent(
    config: AgentConfig, spec: EnvSpec, *, replay: ReplayBufferConfig | None = None
) -> None:
    """Raise `AssertionError` if an agent breaks its contract, `asyncrl/core/agent.py`.

    Takes a second or so and starts no process. What is wrong is said in sentences: what was seen,
    what was expected, what to do.

    Args:
        config: Its settings, such as `DQNConfig()`.
        spec: The spaces it is for, such as `EnvConfig(id="CartPole-v1").build().spec`.
        replay: What it learns from; by default a small one of the kind that `config.learns_from`
            names, or of single transitions.
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
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Finding]:
    """Yield what is to be said of an agent; takes what `check_agent` takes.

    `tell` hears the name of each check before it begins.
    """
    subject = Subject(config, spec, replay)
    for name, check in _CHECKS.items():
        tell(name)
        try:
            seen = check(subject)
        except _Broken as broken:
            yield (fail if broken.fails else warn)(name, broken.seen, f"{broken.advice}.")
        except Exception as error:  # whatever foreign code raises
            yield raised(name, error, _FIRST)
            return  # what comes next relies on this
        else:
            if seen:
                yield ok(name, seen)


def examine_anywhere(
    make: AgentConfig | Callable[[], AgentConfig],
    tell: Callable[[str], None] = lambda _: None,
    *,
    spaces: Mapping[str, EnvSpec] | None = None,
) -> Iterator[Finding]:
    """Yield what is to be said of an agent in each of these spaces that it is for.

    It is given by its settings, or by their class. Without `spaces` there are two small ones.
    `tell` hears what is done next.
    """
    spaces = spaces or _SPACES
    tell("settings")
    try:
        config = make() if isinstance(make, type) else cast(AgentConfig, make)
    except Exception as error:  # whatever foreign code raises
        yield raised("settings", error, _FIRST)
        return
    refusals: list[str] = []
    right: list[str] = []
    wrong: list[str] = []
    for name, spec in spaces.items():
        levels = set()
        try:
            for finding in _examine_in(name, spec, config, tell):
                levels.add(finding.level)
                yield finding
        except _NotForThese as refusal:
            refusals.append(f"{name}: {refusal}")
        else:
            (wrong if "fail" in levels else right).append(name)
    if right and wrong:
        yield warn(
            "spaces",
            f"right where actions are {right[0]}, wrong where they are {wrong[0]}",
            "If it is for the former alone, let `build` raise ConfigError for spaces that it is "
            "not for, as `n_actions(spec, name)` of asyncrl/agents/parts/networks.py does.",
        )
    if len(refusals) == len(spaces):
        yield fail(
            "spaces",
            "; ".join(refusals),
            "If it is for other spaces, name an environment that has them: asyncrl doctor ENV "
            "--agent module:Class.",
        )


class _NotForThese(Exception):  # no error of ours: it is an answer
    """Says why an agent is not for some spaces."""


def _examine_in(
    name: str, spec: EnvSpec, config: AgentConfig, tell: Callable[[str], None]
) -> Iterator[Finding]:
    """Examine an agent in spaces of that name; raise `_NotForThese` if it refuses them."""
    try:
        config.build(spec, PolicyContext(seed=0, n_envs=_N_ENVS))
    except ConfigError as error:
        raise _NotForThese(str(error)) from error
    except Exception as error:  # whatever foreign code raises
        yield raised("settings", error, _FIRST)
        return
    yield ok("spaces", f"actions: {name}")
    yield from examine_agent(config, spec, tell=tell)


class _Broken(Exception):  # no error of ours: it ends a check
    """What was seen that should not be, and what to do."""

    def __init__(self, seen: str, advice: str, *, fails: bool = True) -> None:
        super().__init__(seen)
        self.seen, self.advice, self.fails = seen, advice, fails


class Subject:
    """An agent that is examined, where it acts, and what it learns from."""

    def __init__(
        self, config: AgentConfig, spec: EnvSpec, replay: ReplayBufferConfig | None = None
    ) -> None:
        self.config = config
        self.spec = spec
        kind = config.learns_from if isinstance(config, LearnsFrom) else "transitions"
        self.replay = replay or _REPLAYS[kind]
        self.prioritized = None if replay else _PRIORITIZED.get(kind)

    def agent(self, seed: int = 5) -> Agent:
        """Build what learns."""
        return self.config.build(self.spec, PolicyContext(seed=seed, n_envs=_N_ENVS))

    def policy(self, seed: int = 5) -> Policy:
        """Build what acts."""
        return self.config.build_policy(self.spec, PolicyContext(seed=seed, n_envs=_N_ENVS))

    def obs(self, rows: int = _N_ENVS, seed: int = 0) -> Array:
        """Draw observations."""
        return _observations(self.spec.observation, rows, np.random.default_rng(seed))

    @cached_property
    def batches(self) -> list[Columns]:
        """What a replay hands out of what the policy has done."""
        return self.batches_of(self.replay, 8)

    def batches_of(self, replay: ReplayBufferConfig, count: int) -> list[Columns]:
        """Fill a replay anew and return so many batches."""
        extras = self.config.extra_columns(self.spec)
        replay = with_start_columns(replay, extras)
        processor = make_one_step(_SEGMENT, extras)
        schema = schema_of(processor, self.spec, extras, _SEGMENT, lookahead=replay.lookahead)
        buffer = replay.build(schema, 1)
        env = _MakeBelieve(self.spec)
        actor = InlineActor(
            self.agent(),
            env,
            buffer,
            schema=schema,
            segment=_SEGMENT,
            processor=processor,
            seed=2,
        )
        actor.begin_life()
        batches = []
        for number in range(count):
            for _ in range(_STEPS if number else _FIRST_STEPS):
                actor.run_step()
            batches.append(buffer.sample(_BATCH_SIZE))
        return batches

    def learn(self, agent: Agent, first: int, last: int) -> None:
        """Learn from some of the batches, each in arrays of its own."""
        for batch in self.batches[first:last]:
            optimised(agent, _copied(batch))


class _MakeBelieve:
    """Environments of some spaces in which everything is drawn, and nothing depends on actions."""

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
        """Nothing is held."""


def _observations(space: BoxSpec | PackedSpec, rows: int, random: np.random.Generator) -> Array:
    if isinstance(space, BoxSpec):
        return random_actions(space, (rows,), random)
    return space.pack({name: random_actions(box, (rows,), random) for name, box in space.fields})


# --- what is asked -------------------------------------------------------------------------------


def _settings(subject: Subject) -> str:
    require_agent_config(subject.config)
    pickled(subject.config)
    check_agent_and_replay(subject.config, subject.replay)
    for one, method, names in (
        (subject.agent(), "build", _AGENT),
        (subject.policy(), "build_policy", _POLICY),
    ):
        if missing := [name for name in names if not hasattr(one, name)]:
            raise _Broken(
                f"`{method}` makes {type(one).__name__}, which has no {', '.join(missing)}",
                f"Add it; {_SEE} for what it is to do",
            )
    return f"{type(subject.config).__name__} can be sent, and makes agents and policies"


def require_actions(action: object, spec: EnvSpec, rows: int) -> None:
    """Raise `_Broken` unless these are actions of the space, for so many rows."""
    space = spec.action
    if not isinstance(action, np.ndarray):
        raise _Broken(f"the action is {shown(action)}", "Put a numpy array into `Act`")
    kinds = "iufb" if np.dtype(space.dtype).kind == "f" else "iu"
    wanted = (rows, *space.shape)
    if action.shape != wanted or action.dtype.kind not in kinds:
        raise _Broken(
            f"for {rows} observations `act` chose actions of shape {action.shape} and dtype "
            f"{action.dtype}, expected {wanted} and {space.dtype}",
            "Return one action for each row of `obs`, as `spec.action` describes it",
        )
    low, high = (0, space.n - 1) if isinstance(space, DiscreteSpec) else (space.low, space.high)
    if not ((action >= low) & (action <= high)).all():
        raise _Broken(
            f"`act` chose {shown(action)}, which leaves what is allowed: {shown(low)} to "
            f"{shown(high)}",
            "Clip or squash actions to the bounds of `spec.action`; choices count from 0",
        )


def _acting(subject: Subject) -> str:
    agent = subject.agent()
    for policy in (agent, subject.policy()):
        for training, rows in ((True, _N_ENVS), (False, _N_ENVS), (False, 1)):
            policy.train(training)
            if policy.training is not training:
                raise _Broken(
                    f"after `train({training})`, `training` is {policy.training!r}",
                    "Let `train(mode)` set what `training` returns",
                )
            obs = subject.obs(rows)
            given = obs.copy()
            forget(policy, np.ones(rows, np.bool_))
            require_actions(acted(policy, obs).action, subject.spec, rows)
            if not np.array_equal(given, obs, equal_nan=True):
                raise _Broken("`act` changed the observations", "Copy `obs` before changing it")
    return "actions belong to the space, for any number of rows"


def _evaluating(subject: Subject) -> str:
    policy, obs = subject.policy(), subject.obs(9)
    if not np.array_equal(_greedy(policy, obs), _greedy(policy, obs)):
        raise _Broken(
            "with `train(False)` the same observations got other actions the second time",
            "Explore only if `training`; draw nothing at random otherwise",
        )
    return "explores in training only"


def _repeating(subject: Subject) -> str:
    def actions(seed: int) -> list[bytes]:
        policy = subject.policy(seed)
        policy.sync_model(subject.agent(1).model_info())
        return [acted(policy, subject.obs(seed=i)).action.tobytes() for i in range(5)]

    if actions(1) != actions(1):
        raise _Broken(
            "two policies of one seed and one model acted differently",
            "Draw every random choice from a generator that is seeded with `context.seed`",
            fails=False,
        )
    return "acts the same twice from one seed"


def _columns(subject: Subject) -> str:
    policy = subject.policy()
    policy.train()
    extras = acted(policy, subject.obs()).extras
    declared = {c.name: c.shape for c in subject.config.extra_columns(subject.spec)}
    declared.pop(DISCOUNTED_RETURN, None)  # the step processor fills it
    given = {name: np.shape(value) for name, value in extras.items()}
    wanted = {name: (_N_ENVS, *shape) for name, shape in declared.items()}
    if given != wanted:
        raise _Broken(
            f"`Act.extras` held the columns {given or 'none'}, and `extra_columns` declares "
            f"{wanted or 'none'}, one row for each observation",
            "Let both name the same columns, and fill each whenever `training`",
        )
    return f"own columns: {', '.join(declared) or 'none'}"


def _records(subject: Subject) -> str:
    for policy in (subject.agent(), subject.policy()):
        acted(policy, subject.obs())
        told = policy.record()
        if not isinstance(told, Mapping):
            raise _Broken(f"`record` returned {shown(told)}", "Return numbers by name, or {}")
        for name, value in told.items():
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
        raise _Broken(
            "`opt` changed the arrays of a snapshot that `model_info` had returned before",
            "Return copies: actors and checkpoints still read them",
        )
    if wrong := [n for n, v in agent.model_info().params.items() if not np.isfinite(v).all()]:
        raise _Broken(
            f"after three batches, {wrong[0]} of the model is NaN or infinite",
            "Look for a division by zero, or lower the learning rate",
        )
    return "learns, and leaves its snapshots alone"


def _models(subject: Subject) -> str:
    agent, policy = subject.agent(1), subject.policy(2)
    subject.learn(agent, 0, 3)
    info = agent.model_info()
    before = _copied(info.params)
    policy.sync_model(info)
    if not _same(policy.model_info().params, before):
        raise _Broken(
            "after `sync_model` the policy's own `model_info` holds another model",
            "Take all of `info.params`, and return all of them",
        )
    obs = subject.obs(20)
    if not np.array_equal(_greedy(agent, obs), _greedy(policy, obs)):
        raise _Broken(
            "agent and policy act differently by the same model, with exploration off",
            "Put all that `act` depends on into `model_info().params`",
        )
    taker = subject.agent(3)
    taker.sync_model(info)
    subject.learn(taker, 3, 5)
    if not _same(info.params, before):
        raise _Broken(
            "after `sync_model`, `opt` changed the arrays that it had been given",
            "Copy what `info.params` holds: it is not the agent's",
        )
    return "policies take the learner's model and act by it"


def _wrong_models(subject: Subject) -> str:
    policy, fitting = subject.policy(), subject.agent(9).model_info()
    before = _copied(policy.model_info().params)

    def now() -> Params:
        return policy.model_info().params

    for what, params in _misfits(fitting.params).items():
        take = partial(policy.sync_model, replace(fitting, params=params))
        _require_refusal("sync_model", "model", what, take, ConfigError)
        if not _same(now(), before):
            raise _Broken(
                f"`sync_model` refused a model with {what}, and took a part of it",
                "Compare all names and shapes before the first change",
            )
    return "models that do not fit are refused"


def _parts(subject: Subject) -> str:
    torch_agent = sys.modules.get("asyncrl.agents.parts.torch_agent")  # not loaded for its sake
    agent: Any = subject.agent()
    if torch_agent is None or not isinstance(agent, torch_agent.TorchAgent):
        return ""
    for name, part in agent.parts.items():
        held = getattr(agent, name, part)
        if held is not part and isinstance(held, torch_agent.Part):
            raise _Broken(
                f"`self.{name}` is another object than `self.parts[{name!r}]`, which is saved; a "
                "base has put the latter there, and may go on using it",
                "Give what is new a name of its own and put it into `self.parts`; or hand it to "
                f"all that uses the base's `{name}`, such as `self.updater`, and put it into "
                "`self.parts` in its place",
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
        raise _Broken("`opt` changed a state returned before", "Return copies from `state`")
    now = _copied(agent.state())
    for what, params in {"no array at all": {}, **_misfits(now, fresh)}.items():
        load = partial(agent.load_state, params)
        _require_refusal("load_state", "state", what, load, CheckpointError)
        if not _same(agent.state(), now):
            raise _Broken(
                f"`load_state` refused a state with {what}, and took a part of it",
                "Compare all names and shapes before the first change",
            )
    return "states are copies, and those that do not fit are refused"


def _going_on(subject: Subject) -> str:
    first, twin, other = subject.agent(1), subject.agent(1), subject.agent(2)
    for agent in (first, twin):
        subject.learn(agent, 0, 3)
    if not _same(first.state(), twin.state()):
        raise _Broken(
            "two agents of one seed learned differently from the same batches",
            "Draw every random choice from a generator that is seeded with `context.seed`, and "
            "initialise torch's layers in `with seeded(context.seed)`",
            fails=False,
        )
    subject.learn(other, 5, 7)
    other.load_state(_copied(first.state()))
    if not _same(first.state(), other.state()):
        raise _Broken(
            "after `load_state(state)`, `state()` is another one",
            "Let `load_state` take all that `state` returns",
        )
    for agent in (first, other):
        subject.learn(agent, 3, 6)
    if not _same(first.state(), other.state()):
        raise _Broken(
            "an agent that went on from a state learned otherwise than the one it was saved from",
            "Put into `state` all that `opt` depends on: moments of optimizers, slow copies, "
            "counters, generators",
        )
    return "goes on from its state with the same bits"


def _priorities(subject: Subject) -> str:
    agent = subject.agent()
    if not isinstance(agent, TellsPriorities) or subject.prioritized is None:
        return ""
    (batch,) = subject.batches_of(subject.prioritized, 1)
    optimised(agent, _copied(batch))
    try:
        told, wanted = agent.priorities(), batch["index"].shape
    except ConfigError as error:  # a base may have the method, and what derives from it no numbers
        return f"tells no priorities: {error}"
    if np.shape(told) != wanted or not (np.isfinite(told) & (np.asarray(told) >= 0)).all():
        raise _Broken(
            f"`priorities` returned {shown(told)} of shape {np.shape(told)}, expected {wanted} "
            "numbers, 0 or more",
            "Return the absolute TD error of each row of the newest batch",
        )
    return "tells priorities; prioritized replay can serve it"


def _memory(subject: Subject) -> str:
    if not isinstance(subject.policy(), Remembers):
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
        raise _Broken(
            "an evaluation in the middle of episodes changed what was done next in them",
            "Keep what is remembered in training and in evaluation apart",
        )
    return "remembers training and evaluations apart"


def _spare(subject: Subject) -> str:
    agent = subject.agent()
    if not isinstance(agent, ReusesMemory):
        return ""
    subject.learn(agent, 0, 2)
    old = agent.state()
    subject.learn(agent, 2, 4)
    expected = _copied(agent.state())
    agent.spare = old
    if not _same(agent.state(), expected) or agent.spare:
        raise _Broken(
            "with an older state in `spare`, `state` returned something else, or left it there",
            "Take `spare` out first, and write every array anew; or do without `spare`",
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
    "going on": _going_on,
    "seed": _repeating,
    "priorities": _priorities,
    "memory": _memory,
    "spare": _spare,
}
"""What is asked, in this order: each relies on those before."""


# --- how -----------------------------------------------------------------------------------------


def _greedy(policy: Policy, obs: Array) -> Array:
    """Return what a policy does at the beginning of episodes, with exploration off."""
    with evaluation_mode(policy):
        forget(policy, np.ones(len(obs), np.bool_))
        return acted(policy, obs).action


def _require_arrays(what: str, arrays: object) -> None:
    """Raise unless these are named arrays of plain numbers."""
    if not isinstance(arrays, Mapping):
        raise _Broken(f"{what} is {shown(arrays)}", "Return numpy arrays by name")
    for name, value in arrays.items():
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            raise _Broken(
                f"{what} holds {name!r}: {type(value).__name__}",
                "Return numpy arrays of numbers by name; `np.array(value)` makes one of a number",
            )


def _require_refusal(
    method: str, thing: str, what: str, take: Callable[[], object], kind: type[AsyncRLError]
) -> None:
    """Raise unless something that does not fit is refused as the contract says."""
    try:
        take()
    except kind:
        return
    except Exception as error:
        raise _Broken(
            f"`{method}` of a {thing} with {what} raised {type(error).__name__}: {error}",
            f"Compare names and shapes, and raise `{kind.__name__}` with what does not fit",
        ) from error
    raise _Broken(
        f"`{method}` took a {thing} with {what}",
        f"Compare names and shapes, and raise `{kind.__name__}` before changing anything",
    )


def _misfits(fitting: Params, always: Params | None = None) -> dict[str, Params]:
    """Return what does not fit; `always` are the arrays that none is without."""
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
    """Whether these are the same numbers; NaN is the same as NaN."""
    return set(a) == set(b) and all(
        np.array_equal(a[name], b[name]) or a[name].tobytes() == b[name].tobytes() for name in a
    )
