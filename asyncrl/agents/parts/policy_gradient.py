"""What PPO and IMPALA share: network, policy, trajectories, advantage estimators, minibatches.

For each observation the network outputs the parameters of an action distribution, and a value:

observations ── torso ──┬── [memory] ──┬── outputs of an action head
              (or two)  │              └── value
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from asyncrl.agents.parts.choosing import (
    LOG_PROB,
    ChooserSpec,
    CoreKind,
    MemoryKind,
    SamplingChooser,
    memory_size,
)
from asyncrl.agents.parts.distributions import ActionHead, action_head
from asyncrl.agents.parts.inference import steps_of
from asyncrl.agents.parts.networks import (
    MakeNetwork,
    NetworkInput,
    allowed_only,
    each_field,
    encoder_layers,
    exactly,
    make_orthogonal,
    n_features,
    observation_reader,
)
from asyncrl.agents.parts.recurrent import RecurrentCore, each_row
from asyncrl.agents.parts.schedules import Rate, value_at
from asyncrl.agents.parts.torch_agent import TorchConfig, TorchPolicy, seeded
from asyncrl.agents.parts.updater import TRAJECTORY_COLUMNS, UpdatingAgent
from asyncrl.agents.parts.user_networks import own_encoder
from asyncrl.core.agent import BatchKind, PolicyContext
from asyncrl.core.declared import COMMON, Finite, NotNegative, Positive, PositiveOrOff, Widths
from asyncrl.core.env import BoxSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.inference import MEMORY
from asyncrl.core.segment import ColumnSpec
from asyncrl.core.types import Columns, ModelVersion

Activation = Literal["tanh", "relu"]

_HIDDEN_GAIN = math.sqrt(2.0)
_POLICY_GAIN = 0.01
"""Small, so that initially all actions are about equally likely."""


class PolicyValueNet(nn.Module):
    """A torso, or one each for policy and value, and heads; optionally a memory in between.

    `forward` and `step` process rows (B, ...), `unroll` processes trajectories (B, T, ...).
    """

    def __init__(
        self, torsos: Sequence[nn.Module], n_inputs: int, head: ActionHead, core: CoreKind | None
    ) -> None:
        """Add heads to torsos with `n_inputs` features: a shared torso, or policy and value torso.

        A core has as many units as the torso has features, and needs a shared torso.
        """
        super().__init__()
        self.torsos = nn.ModuleList(torsos)
        self.core = RecurrentCore(core, n_inputs, n_inputs) if core else None
        self.head = head
        self.policy = nn.Linear(n_inputs, head.n_outputs)
        self.value = nn.Linear(n_inputs, 1)
        make_orthogonal(self.policy, _POLICY_GAIN)
        make_orthogonal(self.value, 1.0)
        if self.core is not None:
            make_orthogonal(self.core, 1.0)

    @property
    def memory_size(self) -> int:
        """Size of the memory per environment."""
        return self.core.memory_size if self.core is not None else 0

    def forward(self, obs: NetworkInput) -> tuple[Tensor, Tensor]:
        """Return outputs (B, n_outputs) and values (B,) of a network without memory."""
        features = self.torsos[0](obs)
        others = features if len(self.torsos) == 1 else self.torsos[1](obs)
        outputs = allowed_only(exactly(self.policy, features), obs)
        return outputs, exactly(self.value, others).squeeze(-1)

    def step(self, obs: NetworkInput, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return outputs (B, n_outputs), and the memory after these rows if there is one."""
        features = self.torsos[0](obs)
        if self.core is not None and memory is not None:
            features, memory = self.core.step(features, memory)
        return allowed_only(self.policy(features), obs), memory

    def unroll(
        self, obs: NetworkInput, memory: Tensor, begins: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return outputs (B, T, n_outputs) and values (B, T) of trajectories.

        `begins` (B, T) is where episodes begin, or None if none do.
        """
        features = each_row(self.torsos[0], obs)
        others = features if len(self.torsos) == 1 else each_row(self.torsos[1], obs)
        if self.core is not None:
            features = others = self.core.unroll(features, memory, begins)[0]
        outputs = allowed_only(exactly(self.policy, features), obs)
        return outputs, exactly(self.value, others).squeeze(-1)


def make_torso(
    spec: EnvSpec, hidden: Sequence[int], activation: Activation, own: MakeNetwork | None
) -> tuple[nn.Module, int]:
    """Return the default or a custom torso, and its number of features."""
    if own is not None:
        return own_encoder(own, spec)
    torso = _Torso(spec.observation, hidden, activation)
    make_orthogonal(torso, _HIDDEN_GAIN)
    return torso, torso.n_outputs


class _Torso(nn.Module):
    """Encoders as in `encoder_layers`, and layers with an activation after each of them."""

    def __init__(
        self, observation: BoxSpec | PackedSpec, hidden: Sequence[int], activation: Activation
    ) -> None:
        super().__init__()
        encoder = encoder_layers(observation)
        sizes = [n_features(encoder, observation), *hidden]
        self.n_outputs = sizes[-1]
        self.encoder = nn.Sequential(*encoder)
        self._layers = tuple(nn.Linear(*pair) for pair in pairwise(sizes))
        self.hidden = nn.ModuleList(self._layers)  # never called, since a call would take longer
        self._activate = torch.tanh_ if activation == "tanh" else torch.relu_

    def forward(self, obs: NetworkInput) -> Tensor:
        x: Tensor = self.encoder(obs)
        for layer in self._layers:
            x = self._activate(functional.linear(x, layer.weight, layer.bias))
        return x


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryConfig(TorchConfig):
    """Settings that PPO and IMPALA share."""

    hidden: Annotated[Widths, COMMON] = (64, 64)
    """Units of each hidden layer. For images, these layers follow the convolutions."""

    activation: Activation = "tanh"
    """Activation after each hidden layer."""

    network: MakeNetwork | None = None
    """Factory of a custom torso in place of the hidden layers and what is before them: float
    observations (B, ...), images within [0, 1], or a dict of them by field name such as
    "camera/left" -> (B, features). Memory, and linear heads for policy and value, follow it. Must
    be importable or cloudpickle-able."""

    memory: MemoryKind = "none"
    """Recurrent layer between the torso and the heads, with as many units as the last hidden layer.
    Policy and value share it and the torso."""

    initial_log_std: Finite = 0.0
    """Continuous actions: initial log standard deviation, in units in which their bounds are -1 and
    1."""

    learning_rate: Annotated[Rate, COMMON] = 1e-3
    """Learning rate of the optimizer."""

    max_grad_norm: PositiveOrOff = 0.5
    """Maximum gradient norm. Larger gradients are scaled down to it; 0 disables clipping."""

    value_weight: NotNegative = 0.5
    """Weight of the value loss."""

    entropy_weight: Annotated[Rate, COMMON] = 0.0
    """Weight of the entropy bonus, which keeps the policy from becoming deterministic early."""

    clip_rho: Positive = 1.0
    """V-trace: clip of the importance weight rho in the value targets."""

    clip_c: Positive = 1.0
    """V-trace: clip of the importance weight c that carries corrections back to earlier steps."""

    learns_from: ClassVar[BatchKind] = "trajectories"
    can_accumulate: ClassVar[bool] = True

    @property
    def n_torsos(self) -> int:
        """Number of torsos: one that policy and value share, or two."""
        return 1

    def head(self, spec: EnvSpec) -> ActionHead:
        """Return the action head."""
        return action_head(spec.action, initial_log_std=self.initial_log_std)

    def make_network(self, spec: EnvSpec) -> PolicyValueNet:
        """Return the network, initialised by torch's global generator."""
        core, kind = None if self.memory == "none" else self.memory, self.activation
        torsos = [make_torso(spec, self.hidden, kind, self.network) for _ in range(self.n_torsos)]
        return PolicyValueNet([t for t, _ in torsos], torsos[0][1], self.head(spec), core)

    def policy(self, spec: EnvSpec, context: PolicyContext, device: torch.device) -> TorchPolicy:
        """Return a policy that samples from the network's outputs."""
        with seeded(context.seed):
            net = self.make_network(spec)
        model, read = self.with_norms(net, spec.observation), observation_reader(spec.observation)
        settings = {"memory_size": net.memory_size, "stores_samples": True}
        memory = ColumnSpec(MEMORY, "float32", (net.memory_size,))
        return TorchPolicy(
            model,
            ChooserSpec(SamplingChooser, settings),
            spec,
            context,
            device,
            compute=steps_of(model, read, net.head.complete),
            inputs=[memory] * bool(net.memory_size),
        )

    def extra_columns(self, spec: EnvSpec) -> tuple[ColumnSpec, ...]:
        """Return the columns of log probabilities, memory and normalisation."""
        hidden, own, remembered = self.hidden, self.network, 0
        if self.memory != "none":
            # A core has as many units as the torso has features, usually those of its last layer.
            with seeded(0):
                is_known = hidden and not own
                n_units = hidden[-1] if is_known else make_torso(spec, hidden, "relu", own)[1]
            remembered = memory_size(self.memory, n_units)
        memory = (ColumnSpec(MEMORY, "float32", (remembered,), start=True),) if remembered else ()
        columns = self.head(spec).sampler.columns
        return (ColumnSpec(LOG_PROB, "float32"), *columns, *memory, *self.norm_columns)


def read_columns(net: PolicyValueNet) -> tuple[str, ...]:
    """Return the columns of a batch that an agent with such a network reads."""
    return tuple(dict.fromkeys((*TRAJECTORY_COLUMNS, LOG_PROB, net.head.sampler.column, MEMORY)))


def check_batch(batch: Columns, net: PolicyValueNet, algorithm: str) -> None:
    """Raise if the batch comes from another kind of replay."""
    if missing := {"mask", LOG_PROB} - set(batch):
        raise ConfigError(
            f"{algorithm} learns from trajectories, each once, but this batch has no "
            f"{sorted(missing)}; use TrajectoryQueueConfig as replay"
        )
    if net.memory_size and batch[MEMORY].ndim != 2:
        raise ConfigError(
            f"{algorithm} with a memory needs the one that each trajectory starts from, but this "
            f"batch has memories of shape {batch[MEMORY].shape}; set replay.start_columns to "
            f'("{MEMORY}",)'
        )


class TrajectoryAgent(UpdatingAgent):
    """Acts, and learns from trajectories; its hook is `update(data)`, the equations."""

    algorithm: ClassVar[str]
    """Name of the algorithm in errors."""

    config: TrajectoryConfig
    net: PolicyValueNet

    def draw(self, rows: int) -> dict[str, Tensor]:
        """Return the entropy's weight, which may follow a schedule."""
        weight = value_at(self.config.entropy_weight, self.env_steps)
        return {"entropy_weight": torch.tensor(weight)}

    def opt(self, batch: Columns) -> Mapping[str, Tensor]:
        """Learn from a batch of trajectories."""
        check_batch(batch, self.net, self.algorithm)
        over, mask = self.updater.over, batch["mask"]
        has_rows = bool(mask.any())  # not if a stream was cut directly after an episode's end
        if not over.any(has_rows):
            self.version = ModelVersion(self.version + 1)
            return {}
        if has_rows:
            return super().opt(batch)
        with over.without_rows():  # they are computed with, but do not count
            return super().opt({**batch, "mask": mask | True})


@dataclass(frozen=True, slots=True)
class TrajectoryBatch:
    """Network inputs: observations (B, T + 1, ...), and where episodes begin."""

    obs: NetworkInput
    mask: Tensor
    """(B, T) which rows are transitions."""

    memory: Tensor
    """(B, memory size) before the first rows."""

    @property
    def begins(self) -> Tensor:
        """Return (B, T + 1) where an episode begins: after each row that is no transition."""
        return torch.cat([torch.zeros_like(self.mask[:, :1]), ~self.mask], dim=1)


class Minibatches:
    """A batch, from which parts can be taken in random order."""

    def __init__(
        self, played: TrajectoryBatch, columns: Mapping[str, Tensor], **all_rows: Tensor
    ) -> None:
        """Allow parts of trajectories, and of columns (B, T, ...) that belong to them.

        Each part also has `all_rows`.
        """
        remembers = played.memory.shape[1] > 0
        self._stretches = _Stretches(played.mask, played.memory) if remembers else None
        self._length = played.mask.shape[1]
        self._rows = played.mask.flatten().nonzero()[:, 0]  # of transitions, among (B, T)
        self._obs = each_field(played.obs, lambda field: field.flatten(0, 1))
        self._columns = {name: column.flatten(0, 1) for name, column in columns.items()}
        self._order = self._rows
        self._all_rows = all_rows

    def __len__(self) -> int:
        return len(self._stretches.rows if self._stretches else self._rows)

    def shuffle(self, parts: int, generator: torch.Generator) -> list[slice]:
        """Choose a new random order; return the places of this number of parts in it.

        Each transition, or each stretch, is in exactly one of them. They are of similar size. Some
        are empty if there are fewer transitions than parts.
        """
        self._order = torch.randperm(len(self), generator=generator, device=generator.device)
        ends = accumulate(map(len, self._order.tensor_split(parts)), initial=0)
        return [slice(*pair) for pair in pairwise(ends)]

    def take(self, part: slice) -> dict[str, Any]:
        """Return what `outputs_of` reads, and the columns, of a part of the order."""
        chosen, more = self._order[part], self._all_rows
        if self._stretches is None:
            rows = counted = self._rows[chosen]
        else:
            rows, inside, memory = self._stretches.take(chosen)
            counted = rows[inside]
            more = {**more, "inside": inside, MEMORY: memory}
        # Copies: code that is compiled for a view at one place would not fit one at another.
        columns = {name: c.index_select(0, counted) for name, c in self._columns.items()}
        return {"obs": self._obs_of(rows), **columns, **more}

    def _obs_of(self, rows: Tensor) -> NetworkInput:
        # A trajectory has one observation more than rows.
        places = rows + rows // self._length
        flat = places.flatten()
        return each_field(
            self._obs, lambda f: f.index_select(0, flat).view(*places.shape, *f.shape[1:])
        )


def outputs_of(
    net: PolicyValueNet, rows: Mapping[str, Any], ask: Callable[..., tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return the outputs and values of what `Minibatches.take` returned.

    `ask(network, *inputs)` passes inputs through the network.
    """
    if MEMORY not in rows:
        return ask(net, rows["obs"])
    outputs, values = ask(net.unroll, rows["obs"], rows[MEMORY])
    return outputs[rows["inside"]], values[rows["inside"]]


class _Stretches:
    """Consecutive transitions of one episode; all stretches are unrolled in parallel.

    Whole trajectories would have to be unrolled from one episode start to the next, each at a
    different row, which takes an LSTM five times as long.
    """

    def __init__(self, mask: Tensor, memory: Tensor) -> None:
        gap = torch.zeros_like(mask[:, :1])
        which, first = (mask & ~torch.cat([gap, mask[:, :-1]], dim=1)).nonzero().unbind(dim=1)
        last = (mask & ~torch.cat([mask[:, 1:], gap], dim=1)).nonzero()[:, 1]
        length = (last - first + 1)[:, None]
        step = torch.arange(mask.shape[1], device=mask.device)
        self.inside = step < length
        self.rows = (which * mask.shape[1] + first)[:, None] + torch.minimum(step, length - 1)
        # Only the start of a trajectory continues from a memory.
        self.memory = torch.where((first == 0)[:, None], memory[which], 0.0)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows (S, L) of all trajectories, which of them count, and memories before them."""
        inside = self.inside[index]
        longest = int(inside.sum(dim=1).max())
        return self.rows[index, :longest], inside[:, :longest], self.memory[index]


class VTrace(NamedTuple):
    """The results of V-trace for trajectories, both (B, T)."""

    targets: Tensor
    """Targets of the values; a row that is no transition keeps its value."""

    advantages: Tensor
    """Advantages of the actions, with their importance weights; 0 for rows that are no
    transitions."""


@torch.no_grad()
def gae(reward: Tensor, discount: Tensor, mask: Tensor, values: Tensor, lambda_: float) -> Tensor:
    """Return generalized advantage estimates (B, T); value targets are these plus values."""
    # delta_t = r_t + gamma V(s_t+1) - V(s_t);  A_t = delta_t + gamma lambda A_t+1
    delta = torch.where(mask, reward + discount * values[:, 1:] - values[:, :-1], 0.0)
    return _sums(delta, discount * lambda_)


@torch.no_grad()
def vtrace(
    log_rhos: Tensor,
    reward: Tensor,
    discount: Tensor,
    mask: Tensor,
    values: Tensor,
    *,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> VTrace:
    """Correct for actions that another policy than the learning one chose.

    Args:
        log_rhos: Log importance weight: log pi(a) now minus log probability when acting, (B, T).
        reward: Rewards (B, T).
        discount: Discounts (B, T).
        mask: Which rows are transitions, (B, T).
        values: Values of the rows and of the observation after the last one, (B, T + 1).
        lambda_: Weight of later corrections; 1 is the paper's definition, its remark 2 has others.
        clip_rho: Clip of a correction's importance weight; decides which policy is evaluated.
        clip_c: Clip of the importance weight passed to earlier rows; decides how fast.
        clip_pg_rho: Clip of an advantage's importance weight.
    """
    rhos = log_rhos.exp()
    # delta_t V = rho_t (r_t + gamma V(x_t+1) - V(x_t)), rho_t = min(clip_rho, pi / mu)
    delta = reward + discount * values[:, 1:] - values[:, :-1]
    delta = torch.where(mask, rhos.clamp(max=clip_rho) * delta, 0.0)
    # v_s - V(x_s) = delta_s V + gamma c_s (v_s+1 - V(x_s+1)), c_s = lambda min(clip_c, pi / mu)
    corrections = _sums(delta, discount * lambda_ * rhos.clamp(max=clip_c))
    targets = values[:, :-1] + corrections
    # A_s = rho_s (r_s + gamma v_s+1 - V(x_s)); after the last row there is no correction
    next_targets = torch.cat([targets[:, 1:], values[:, -1:]], dim=1)
    advantages = rhos.clamp(max=clip_pg_rho) * (reward + discount * next_targets - values[:, :-1])
    return VTrace(targets, torch.where(mask, advantages, 0.0))


def _sums(terms: Tensor, factors: Tensor) -> Tensor:
    """Return s with s[t] = terms[t] + factors[t] * s[t + 1], along the rows of (B, T)."""
    sums = [torch.zeros_like(terms[:, 0])]
    for term, factor in zip(reversed(terms.unbind(1)), reversed(factors.unbind(1)), strict=True):
        sums.append(torch.addcmul(term, factor, sums[-1]))
    return torch.stack(sums[:0:-1], dim=1)
