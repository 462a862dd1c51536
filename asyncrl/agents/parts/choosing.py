"""The half of acting that needs no network: from its outputs to actions. Loads no torch.

A policy has a chooser and a network. An actor whose networks a server computes builds the chooser
alone, from its `ChooserSpec`, and so has neither parameters nor torch.

Samplers are the other half of `distributions.py`: its heads complete a network's outputs, and a
sampler draws from them. Probabilities refer to the sample, which may differ from the environment's
action: a Gaussian has no bounds, so its samples are scaled and clipped. The unclipped sample is
then stored in an additional column, `sampler.columns`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import numpy as np

from asyncrl.agents.parts.exploration import Exploration, Explorer, random_allowed
from asyncrl.agents.parts.schedules import Schedule, value_at
from asyncrl.core.agent import Act, PolicyContext
from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.inference import MEMORY, NOISE, OBS, OUTPUTS, Inference
from asyncrl.core.recorder import Record
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.types import Array, BoolArray, Columns

REWARD_SCALE = "reward_scale"
"""Output of a network that normalises rewards, and column of initial priorities."""

CoreKind = Literal["gru", "lstm"]
"""Cho et al. (2014), or Hochreiter and Schmidhuber (1997), whose memory is twice as large."""

MemoryKind = Literal["none", "gru", "lstm"]
"""Kinds of memory of a policy."""


def memory_size(kind: MemoryKind, n_units: int) -> int:
    """Return the size of the memory of this number of units."""
    return n_units * {"none": 0, "gru": 1, "lstm": 2}[kind]


class Memories:
    """A policy's memory of each environment, separate for training and evaluation.

    A synchronous run evaluates the acting policy in the middle of its episodes. There is memory for
    the number of rows of the last step; for any other number it is empty.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: dict[bool, Array] = {}  # by `training`; never changed in place

    def recall(self, n_envs: int, *, training: bool) -> Array:
        """Return the memory (n_envs, size) that the next step starts from."""
        kept = self._kept.get(training)
        if kept is None or len(kept) != n_envs:
            return np.zeros((n_envs, self._size), np.float32)
        return kept

    def keep(self, memory: Array, *, training: bool) -> None:
        """Store this memory (B, size)."""
        self._kept[training] = memory

    def forget(self, where: BoolArray, *, training: bool) -> None:
        """Reset the memory of these environments (B,)."""
        kept = self._kept.get(training)
        if kept is None or not where.any():
            return
        if where.all() or len(where) != len(kept):
            del self._kept[training]
            return
        self._kept[training] = np.where(where[:, None], np.float32(0.0), kept)


@dataclass(frozen=True, slots=True)
class ChooserSpec:
    """How to build a chooser; can be sent to other processes."""

    kind: type[Chooser]

    settings: Mapping[str, Any] = field(default_factory=dict)
    """What its class takes by name, besides the spaces and the context."""

    def __call__(self, spec: EnvSpec, context: PolicyContext) -> Chooser:
        """Build it for these environments."""
        return self.kind(spec, context, **self.settings)


class Chooser(ABC):
    """Chooses actions from the outputs of a network, and remembers what that needs.

    Attributes:
        inference: Computes the network; set by the policy that owns the chooser.
        training: Whether `act` explores.
        env_steps: Environment steps of the whole run, as far as known here: those that the newest
            model came with, or its own count if that is higher. `act` counts the rows that it acts
            on in training. Schedules use it.
        random: Generator of all random choices.
    """

    squashed: ClassVar[bool] = False
    """Whether it squashes outputs by tanh to the bounds of actions."""

    inference: Inference

    def __init__(self, spec: EnvSpec, context: PolicyContext, *, memory_size: int = 0) -> None:
        """Choose for environments of this kind, by a network with a memory of this size."""
        self.training = True
        self.env_steps = 0
        self.random = np.random.default_rng(context.seed)
        self.memories = Memories(memory_size) if memory_size else None

    @abstractmethod
    def act(self, obs: Array) -> Act:
        """Choose an action for each observation; explore if `training`."""

    def train(self, mode: bool = True) -> Self:
        """Switch exploration on or off, and nothing else."""
        self.training = mode
        return self

    def forget(self, where: BoolArray) -> None:
        """Reset the memory of environments in which an episode begins."""
        if self.memories is not None:
            self.memories.forget(where, training=self.training)

    def spread(self, n_actors: int) -> None:  # noqa: B027  # most have no ladder
        """Take the place on a ladder of exploration in a run with this number of actors."""

    def record(self) -> Record:
        """Return numbers to record about acting: none, unless a subclass adds some."""
        return {}

    def ask(self, inputs: Columns) -> tuple[Columns, Columns]:
        """Return the network's answer, and the memory before it as a column, if there is one."""
        if self.memories is None:
            return self.inference(inputs), {}
        memory = self.memories.recall(len(inputs[OBS]), training=self.training)
        before = {MEMORY: memory}
        answer = self.inference({**inputs, **before})
        self.memories.keep(answer[MEMORY], training=self.training)
        return answer, before


class ValueChooser(Chooser):
    """Chooses by the values of all actions."""

    def __init__(
        self,
        spec: EnvSpec,
        context: PolicyContext,
        *,
        exploration: Exploration | None,
        noise_size: int = 0,
        memory_size: int = 0,
        stores_values: bool = False,
    ) -> None:
        """Set up.

        Args:
            spec: Kind of the environments.
            context: Where it acts.
            exploration: How it explores; None leaves that to noise in the network.
            noise_size: Size of one row of the network's noise.
            memory_size: Size of the network's memory, which is stored with actions.
            stores_values: Whether values are stored with actions, for initial priorities.
        """
        super().__init__(spec, context, memory_size=memory_size)
        self.explorer = exploration and Explorer(exploration, context, self.random)
        self.noise_size = noise_size
        self.stores_values = stores_values

    def act(self, obs: Array) -> Act:
        """Choose the best action in each environment, or explore."""
        inputs = {OBS: obs}
        if self.noise_size and self.training:  # different noise in each environment
            inputs[NOISE] = self._noise(len(obs))
        answer, memory = self.ask(inputs)
        q = answer[OUTPUTS]
        if not self.training:
            return Act(q.argmax(axis=1))
        self.env_steps += len(obs)
        action = self.explorer.choose(q, self.env_steps) if self.explorer else q.argmax(axis=1)
        return Act(action, {**memory, **self._values(answer, action)})

    def spread(self, n_actors: int) -> None:
        """Take the place on the ladder of a run with this number of actors."""
        if self.explorer:
            self.explorer.spread(n_actors)

    def forget(self, where: BoolArray) -> None:
        """Also end lasting exploration; evaluations do not explore."""
        super().forget(where)
        if self.training and self.explorer:
            self.explorer.forget(where)

    def record(self) -> Record:
        """Return the current amount of exploration."""
        return self.explorer.record(self.env_steps) if self.explorer else {}

    def _values(self, answer: Columns, action: Array) -> Columns:
        """Return the columns from which a replay computes initial priorities."""
        if not self.stores_values:
            return {}
        q = answer[OUTPUTS]
        values = {"q_taken": q[np.arange(len(q)), action], "q_best": q.max(axis=1)}
        return values | {name: answer[name] for name in answer.keys() & {REWARD_SCALE}}

    def _noise(self, rows: int) -> Array:
        """Sample noise (rows, size): f(e) of normally distributed e."""
        normal = self.random.standard_normal((rows, self.noise_size), np.float32)
        # f(e) = sign(e) sqrt(|e|), see `networks.Perturbation`
        noise: Array = np.copysign(np.sqrt(np.abs(normal)), normal)
        return noise


class LogitChooser(Chooser):
    """Samples from logits, uniformly in the first steps; takes the most likely in evaluation.

    Ties go to the first action.
    """

    def __init__(self, spec: EnvSpec, context: PolicyContext, *, random_env_steps: int = 0) -> None:
        """Choose uniformly in the first steps of the run."""
        super().__init__(spec, context)
        self.random_env_steps = random_env_steps
        self._masked = spec.masked
        self._n_actions = spec.action.n if isinstance(spec.action, DiscreteSpec) else 0

    def act(self, obs: Array) -> Act:
        """Choose an action for each observation."""
        if not self.training:
            return Act(self._logits(obs).argmax(axis=1))
        if self.env_steps >= self.random_env_steps:
            # Gumbel-max trick: argmax(logits + G) is a sample from softmax(logits).
            logits = self._logits(obs)
            action = (logits + self.random.gumbel(size=logits.shape)).argmax(axis=1)
        elif self._masked:  # the outputs say which actions are allowed
            action = random_allowed(self._logits(obs), self.random.random(len(obs)))
        else:
            action = self.random.integers(self._n_actions, size=len(obs))
        self.env_steps += len(obs)
        return Act(action)

    def _logits(self, obs: Array) -> Array:
        return self.inference({OBS: obs})[OUTPUTS]


LOG_PROB = "log_prob"
"""Column of the log probabilities, or log densities, of the sampled actions."""

IMPOSSIBLE = -1e9
"""Logit of padding that is not an action: finite, so that 0 times its logarithm is 0."""

_HALF_LOG_2_PI = np.float32(0.5 * math.log(2.0 * math.pi))


@dataclass(frozen=True, slots=True)
class SampledAction:
    """Sampled actions, and what an agent may store beside them."""

    action: Array
    """(..., *action shape) for the environment, of its dtype and within its bounds."""

    log_prob: Array
    """(...) float32 log probabilities, or log densities, of the samples."""

    extras: Columns = field(default_factory=dict)
    """The sampler's additional columns."""


class Sampler(ABC):
    """Chooses actions from completed outputs (..., n), of any leading dimensions."""

    column: str = "action"
    """Column of a batch that holds the samples."""

    columns: tuple[ColumnSpec, ...] = ()
    """Columns to store beside the action, in addition to its log probability."""

    @abstractmethod
    def sample(self, complete: Array, random: np.random.Generator) -> SampledAction:
        """Sample an action for each row."""

    @abstractmethod
    def mode(self, complete: Array) -> Array:
        """Return the most likely actions."""


class CategoricalSampler(Sampler):
    """One discrete action, or several independent ones: an action has one entry for each."""

    def __init__(self, sizes: Array, low: Array, shape: tuple[int, ...], dtype: str) -> None:
        """Set up for actions with these numbers of choices per entry, counted from `low`."""
        self.low = low.astype(np.int64)
        self._shape, self._dtype = shape, np.dtype(dtype)
        # Outputs of all entries are concatenated; in the table, shorter rows are padded.
        place = np.arange(sizes.max())
        self.padding = place >= sizes[:, None]
        """Which cells of the table (entries, choices) are no choices."""
        self.index = np.where(self.padding, 0, (sizes.cumsum() - sizes)[:, None] + place)
        """The output of each cell of the table."""
        self.is_table = not self.padding.any()
        """Whether the outputs are a table as they are."""

    def sample(self, complete: Array, random: np.random.Generator) -> SampledAction:
        """Sample a choice for each entry."""
        logits = self._table(complete)
        # Gumbel-max trick: argmax(logits + G) is a sample from softmax(logits).
        choice = (logits + random.gumbel(size=logits.shape)).argmax(axis=-1)
        # log p(a) = sum over the entries of logit(a) - log sum_k exp(logit(k))
        logits = logits - logits.max(axis=-1, keepdims=True)
        flat = logits.reshape(-1, logits.shape[-1])
        taken = flat[np.arange(len(flat)), choice.reshape(-1)].reshape(choice.shape)
        log_prob = taken - np.log(np.exp(logits).sum(axis=-1))
        return SampledAction(self._action(choice), log_prob.sum(axis=-1))

    def mode(self, complete: Array) -> Array:
        """Return the most likely choice of each entry."""
        return self._action(self._table(complete).argmax(axis=-1))

    def _table(self, complete: Array) -> Array:
        """Return float32 logits (..., entries, choices)."""
        complete = complete.astype(np.float32, copy=False)
        if self.is_table:
            return complete.reshape(*complete.shape[:-1], *self.index.shape)
        return np.where(self.padding, np.float32(IMPOSSIBLE), complete[..., self.index])

    def _action(self, choice: Array) -> Array:
        action = (choice + self.low).astype(self._dtype)
        return action.reshape((*choice.shape[:-1], *self._shape))


class GaussianSampler(Sampler):
    """Independent Gaussians, in units in which the bounds of an action are -1 and 1.

    If an entry's bounds are not both finite, or are equal, its unit is the environment's.
    """

    column = "drawn_action"

    def __init__(self, box: BoxSpec) -> None:
        self.columns = (ColumnSpec(self.column, "float32", (math.prod(box.shape),)),)
        self._shape, self._dtype = box.shape, np.dtype(box.dtype)
        self.low, self.high = box.low.ravel(), box.high.ravel()
        """Bounds in the environment's units, flat."""
        self.center, self.half = _units(self.low, self.high)
        """The environment's action is center + half * sample, clipped."""

    def sample(self, complete: Array, random: np.random.Generator) -> SampledAction:
        """Sample from the Gaussians; the environment's actions are clipped to its bounds."""
        n = len(self.center)
        mean, log_std = complete[..., :n], complete[..., n:]
        noise = random.standard_normal(mean.shape, np.float32)
        drawn = mean + np.exp(log_std) * noise
        # sum_j log N(x_j; m_j, s_j) = sum_j -e_j^2 / 2 - log s_j - log(2 pi) / 2
        log_prob = (np.float32(-0.5) * np.square(noise) - log_std - _HALF_LOG_2_PI).sum(axis=-1)
        return SampledAction(self._action(drawn), log_prob, {self.column: drawn})

    def mode(self, complete: Array) -> Array:
        """Return the means, clipped."""
        return self._action(complete[..., : len(self.center)])

    def _action(self, unit: Array) -> Array:
        action: Array = (self.center + self.half * unit).astype(self._dtype)
        action = action.clip(self.low, self.high)
        return action.reshape((*unit.shape[:-1], *self._shape))


def make_sampler(action: BoxSpec | DiscreteSpec) -> CategoricalSampler | GaussianSampler:
    """Return the sampler for an action space."""
    if isinstance(action, DiscreteSpec):
        return CategoricalSampler(np.array([action.n]), np.array([0]), action.shape, action.dtype)
    if action.categorical:
        low, high = action.low.ravel().astype(np.int64), action.high.ravel().astype(np.int64)
        return CategoricalSampler(high - low + 1, low, action.shape, action.dtype)
    if np.dtype(action.dtype).kind != "f":
        raise ConfigError(
            f"continuous actions of dtype {action.dtype} cannot be sampled from Gaussians; let the "
            "environment take floats and round them, or make its action space a MultiDiscrete"
        )
    return GaussianSampler(action)


class SamplingChooser(Chooser):
    """Samples actions in training; takes the most likely ones otherwise."""

    def __init__(
        self,
        spec: EnvSpec,
        context: PolicyContext,
        *,
        memory_size: int = 0,
        stores_samples: bool = False,
    ) -> None:
        """Set up.

        Args:
            spec: Kind of the environments.
            context: Where it acts.
            memory_size: Size of the network's memory.
            stores_samples: Whether log probabilities and memories are stored with actions.
        """
        super().__init__(spec, context, memory_size=memory_size)
        self.sampler = make_sampler(spec.action)
        self._stores_samples = stores_samples

    def act(self, obs: Array) -> Act:
        """Choose an action for each observation."""
        answer, memory = self.ask({OBS: obs})
        if not self.training:
            return Act(self.sampler.mode(answer[OUTPUTS]))
        self.env_steps += len(obs)
        drawn = self.sampler.sample(answer[OUTPUTS], self.random)
        if not self._stores_samples:
            return Act(drawn.action)
        return Act(drawn.action, {LOG_PROB: drawn.log_prob, **drawn.extras, **memory})


def _units(low: Array, high: Array) -> tuple[Array, Array]:
    """Return centers and half widths of bounds: 0 and 1 if there are none, 1 if the width is 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        width = high.astype(np.float32) - low.astype(np.float32)
    bounded = np.isfinite(width)
    first, last = (np.where(bounded, side, 0.0).astype(np.float64) for side in (low, high))
    center = (first + last) / 2
    half = np.where(last > first, (last - first) / 2, 1.0)
    return center.astype(np.float32), half.astype(np.float32)


_LOG_STD_MIN, _LOG_STD_MAX = -5.0, 2.0


class Bounds:
    """Bounds of continuous actions of any shape, and the conversion between them and [-1, 1]."""

    def __init__(self, spec: EnvSpec, algorithm: str) -> None:
        """Take the bounds of the action space; raise if the algorithm cannot use it."""
        box = _checked_box(spec, algorithm)
        self.shape, self.dtype = box.shape, box.dtype
        self.size = math.prod(box.shape)
        """Number of action dimensions."""
        self._low, self._high = box.low.ravel(), box.high.ravel()
        low, high = self._low.astype(np.float64), self._high.astype(np.float64)
        self.center = ((high + low) / 2).astype(np.float32)
        """Centers of the intervals (size,)."""
        self.half = ((high - low) / 2).astype(np.float32)
        """Half their widths."""

    def actions(self, unit: Array) -> Array:
        """Convert (B, size) in [-1, 1] to the environment's actions (B, *shape)."""
        action = (self.center + self.half * unit).astype(self.dtype)
        # clipped because rounding may exceed the bounds
        action = action.clip(self._low, self._high)
        return action.reshape(len(unit), *self.shape)


_erf = np.frompyfunc(math.erf, 1, 1)


class LastingNoise:
    """Correlated standard normal noise: an Ornstein-Uhlenbeck process.

    At every step the noise is standard normal; samples `k` steps apart in one episode have
    correlation exp(-k / correlation_env_steps). With 0 they are independent.
    """

    def __init__(self, correlation_env_steps: float, random: np.random.Generator) -> None:
        self._keep = math.exp(-1.0 / correlation_env_steps) if correlation_env_steps else 0.0
        self._random = random
        self._last = np.zeros((0, 0), np.float32)
        self._begins = np.zeros(0, np.bool_)

    def begin(self, where: BoolArray) -> None:
        """Restart the noise of these rows: an episode begins there.

        A resumed run begins with new episodes, so it need not save the noise.
        """
        if self._keep:
            self._begins = where | self._begins if len(where) == len(self._begins) else where

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Return float32 numbers of N(0, 1)."""
        fresh = self._random.standard_normal(shape, np.float32)
        if not self._keep:
            return fresh
        if self._last.shape != shape:
            self._last = fresh
        else:
            # rho x + sqrt(1 - rho^2) N(0, 1) is standard normal if x is
            spread = math.sqrt(1.0 - self._keep**2)
            lasting = np.float32(self._keep) * self._last + np.float32(spread) * fresh
            begins = self._begins[:, None] if len(self._begins) == len(fresh) else np.False_
            self._last = np.where(begins, fresh, lasting)
        self._begins = np.zeros(len(fresh), np.bool_)
        return self._last

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Return samples that are uniform in [-1, 1]."""
        if not self._keep:
            return self._random.uniform(-1.0, 1.0, shape)
        # Phi(x) of a standard normal x is uniform in [0, 1], and 2 Phi(x) - 1 = erf(x / sqrt 2).
        steady: Array = np.asarray(_erf(self.normal(shape) / math.sqrt(2.0)), np.float32)
        return steady


def _checked_box(spec: EnvSpec, algorithm: str) -> BoxSpec:
    box = spec.action
    if not isinstance(box, BoxSpec):
        raise ConfigError(
            f"{algorithm} needs continuous actions, but these are {box.n} discrete ones; use DQN, "
            "or give another --env"
        )
    if np.dtype(box.dtype).kind != "f":
        raise ConfigError(
            f"{algorithm} needs actions of a float dtype, but these are "
            f"{box.dtype}{(', several choices at once; use PPO' if box.categorical else '')}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        width = box.high.astype(np.float32) - box.low.astype(np.float32)
    if not (np.isfinite(width) & (width > 0)).all():
        raise ConfigError(
            f"{algorithm} scales actions between bounds, which must be finite and different, but "
            f"these are low={box.low.tolist()}, high={box.high.tolist()}; set bounds of the action "
            "space in the environment's factory"
        )
    return box


class BoundedChooser(Chooser, ABC):
    """Acts uniformly at random for the first steps of a run, then as a subclass chooses.

    Its hook is `choose(answers)`.
    """

    squashed = True

    def __init__(
        self,
        spec: EnvSpec,
        context: PolicyContext,
        *,
        algorithm: str,
        random_env_steps: int = 0,
        noise_correlation_env_steps: float = 0.0,
    ) -> None:
        """Set up; raise if the algorithm, named in errors, cannot use the action space."""
        super().__init__(spec, context)
        self.bounds = Bounds(spec, algorithm)
        self.noise = LastingNoise(noise_correlation_env_steps, self.random)
        self.random_env_steps = random_env_steps

    def act(self, obs: Array) -> Act:
        """Choose actions within the bounds."""
        if self.training and self.env_steps < self.random_env_steps:
            unit = self.noise.uniform((len(obs), self.bounds.size))
        else:
            unit = self.choose(self.inference({OBS: obs})[OUTPUTS])
        if self.training:
            self.env_steps += len(obs)
        return Act(self.bounds.actions(unit))

    def forget(self, where: BoolArray) -> None:
        """Restart the noise where an episode begins; evaluations have none."""
        if self.training:
            self.noise.begin(where)

    @abstractmethod
    def choose(self, answers: Array) -> Array:
        """Return actions (B, size) in [-1, 1] for the model's outputs."""


class SquashedChooser(BoundedChooser):
    """Chooses from means and log standard deviations."""

    def choose(self, answers: Array) -> Array:
        """Return a sample when training and the mean when not, in [-1, 1]."""
        mean, log_std = answers[:, : self.bounds.size], answers[:, self.bounds.size :]
        if self.training:
            std = np.exp(log_std.clip(_LOG_STD_MIN, _LOG_STD_MAX))
            mean = mean + std * self.noise.normal(mean.shape)
        unit: Array = np.tanh(mean)
        return unit


class NoisyChooser(BoundedChooser):
    """Adds noise to a deterministic policy's actions before they are squashed."""

    def __init__(
        self,
        spec: EnvSpec,
        context: PolicyContext,
        *,
        noise: float | Schedule,
        noise_ladder: float = 1.0,
        **settings: Any,  # noqa: ANN401  # those of `BoundedChooser`
    ) -> None:
        """Add noise of this standard deviation, spread over environments by the ladder."""
        super().__init__(spec, context, **settings)
        self._std, self._ladder, self._context = noise, noise_ladder, context
        self.spread(context.n_actors)

    def spread(self, n_actors: int) -> None:
        """Take the places on the ladder of a run with this number of actors."""
        self._rungs = _rungs(self._ladder, self._context, n_actors)

    def scales(self) -> Array:
        """Return the current standard deviation of the noise of each environment."""
        return value_at(self._std, self.env_steps) * self._rungs

    def record(self) -> Record:
        """Return the amount of exploration: the mean standard deviation of action noise."""
        return {"exploration_noise": float(self.scales().mean())}

    def choose(self, answers: Array) -> Array:
        """Return pi(s), with noise when training."""
        unit: Array = np.tanh(answers)
        if not self.training:
            return unit
        # Clipped, since noise may exceed the bounds of actions.
        noise = self.scales()[:, None] * self.noise.normal(unit.shape)
        noisy: Array = (unit + noise).clip(-1.0, 1.0)
        return noisy


def _rungs(ladder: float, context: PolicyContext, n_actors: int) -> Array:
    """Return the factor of each environment's noise."""
    n = n_actors * context.n_envs
    if n == 1:
        return np.ones(1, np.float32)
    # ladder^(1 - 2 i / (N - 1)), counted across all actors
    i = context.actor_id * context.n_envs + np.arange(context.n_envs)
    rungs: Array = (ladder ** (1.0 - 2.0 * np.minimum(i / (n - 1), 1.0))).astype(np.float32)
    return rungs
