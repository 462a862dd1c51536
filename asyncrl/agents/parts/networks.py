"""Default networks of agents, where they compute, and what they make of observations.

Action masks: outputs of a network for actions that the observation forbids become very low. A mask
is a field of the observation, see `ACTION_MASK` in `core/env.py`, so it is stored with the
observation and its successor, and reaches every place that computes the network: actors, servers,
updates, exported files. Argmax, softmax and sampling then need no separate mask, and neither do
the targets of an update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from asyncrl.agents.parts.exploration import FORBIDDEN
from asyncrl.core.env import ACTION_MASK, BoxSpec, DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError
from asyncrl.core.types import Array


def pick_device(name: str, setting: str = "agent.device") -> torch.device:
    """Return the device of that name; `auto` is a GPU if there is one.

    `setting` names it in errors.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{setting} must be auto, cpu, cuda or cuda:N, got {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{setting} is {name!r}, but torch {torch.__version__} sees no GPU")
    return device


def exactly(head: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
    """Return a head's output in float32 if the network computes in a lower precision.

    Heads in double precision keep it; torch allows that for all layers above float32. Errors and
    advantages are small differences of values, and bfloat16 cannot distinguish 1 from less than
    1.004, or 200 from less than 201.
    """
    kind = features.device.type
    if not torch.is_autocast_enabled(kind):
        return head(features)
    with torch.autocast(kind, enabled=False):
        return head(features.to(torch.promote_types(features.dtype, torch.float32)))


class Headed(nn.Sequential):
    """A sequence of layers whose last one is a head."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the last layer."""
        *body, head = self
        for layer in body:
            x = layer(x)
        return exactly(head, x)


class NoisyLinear(nn.Linear):
    """A linear layer with Gaussian weights; without noise it uses their means."""

    noise: Tensor | None
    """(1 or rows, inputs + outputs), set by a `Perturbation`. None: no noise."""

    def __init__(self, n_inputs: int, n_outputs: int, sigma: float = 0.5) -> None:
        """Create a layer whose initial noise is `sigma` over the root of the inputs."""
        super().__init__(n_inputs, n_outputs)  # draws mu from U(-1 / sqrt(p), 1 / sqrt(p))
        spread = sigma * n_inputs**-0.5
        self.weight_sigma = nn.Parameter(torch.full((n_outputs, n_inputs), spread))
        self.bias_sigma = nn.Parameter(torch.full((n_outputs,), spread))
        self.noise = None

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., rows, outputs) of (..., rows, inputs)."""
        if self.noise is None:
            return functional.linear(x, self.weight, self.bias)
        into, out = self.noise.split([self.in_features, self.out_features], dim=1)
        if len(self.noise) == 1:
            # mu + sigma * f(e_out) f(e_in)^T
            weight = torch.addcmul(self.weight, self.weight_sigma, out.mT * into)
            bias = torch.addcmul(self.bias, self.bias_sigma, out[0])
            return functional.linear(x, weight, bias)
        y = functional.linear(x, self.weight, self.bias)
        # (sigma_w * f_out f_in^T) x + sigma_b * f_out = f_out * (sigma_w (f_in * x) + sigma_b)
        spread = functional.linear(x * into, self.weight_sigma, self.bias_sigma)
        perturbed: Tensor = y + out * spread
        return perturbed


class NoisyMLP(Headed):
    """Noisy layers with ReLU in between; the last layer is a head without ReLU."""

    def __init__(
        self, n_inputs: int, hidden: Sequence[int], n_outputs: int, sigma: float = 0.5
    ) -> None:
        sizes = pairwise([n_inputs, *hidden, n_outputs])
        layers = [module for size in sizes for module in (NoisyLinear(*size, sigma), nn.ReLU())]
        super().__init__(*layers[:-1])


class Perturbation:
    """The noise of all noisy layers of one network, sampled at once; empty if it has none."""

    def __init__(self, network: nn.Module) -> None:
        self._layers = [m for m in network.modules() if isinstance(m, NoisyLinear)]
        self._sizes = [layer.in_features + layer.out_features for layer in self._layers]
        self.size = sum(self._sizes)
        """Size of one row of noise."""

    def draw(self, random: np.random.Generator, rows: int) -> Tensor:
        """Sample noise (rows, size), on the CPU."""
        return self.shape(torch.from_numpy(random.standard_normal((rows, self.size), np.float32)))

    @staticmethod
    def shape(normal: Tensor) -> Tensor:
        """Apply f to normally distributed numbers."""
        # f(e) = sign(e) sqrt(|e|)
        return normal.abs().sqrt_().copysign_(normal)

    def set(self, noise: Tensor) -> None:
        """Perturb the network, with noise (1 or rows, size), until `clear`."""
        for layer, part in zip(self._layers, noise.split(self._sizes, dim=1), strict=True):
            layer.noise = part

    def clear(self) -> None:
        """Remove the noise: the network uses its mean weights."""
        for layer in self._layers:
            layer.noise = None


MakeNetwork = Callable[[EnvSpec], nn.Module]
"""Makes a custom network."""

Convolve = Callable[[int], nn.Sequential]
"""Makes convolutions of images with this number of channels."""

NetworkInput = Tensor | dict[str, Tensor]
"""Float observations (B, ...), images within [0, 1]; a dict of them if there are several fields.

Scaled bytes have the precision in which the learner computes, unless it normalises; all else is
float32.
"""

_MAX_CHOICES = 1024
"""Maximum number of choices to encode one-hot; more would make the layer too wide."""

_EMBEDDED = 64
"""Features of an `Embedding`."""

_MAX_EMBEDDED = 2**20
"""Maximum number of choices to embed: their parameters are 256 MiB, and travel to all actors."""

_EXACT_IN_FLOAT32 = 2**24

_LARGEST_BYTE = 255.0

_MIN_IMAGE_SIDE = 36
"""Minimum height and width in pixels for convolutions."""


def each_field(obs: NetworkInput, change: Callable[[Tensor], Tensor]) -> NetworkInput:
    """Apply a function to each field of observations."""
    if isinstance(obs, Tensor):
        return change(obs)
    return {name: change(field) for name, field in obs.items()}


class ScaledBytes:
    """Converts bytes to float32, divided by one scale or by one for each number.

    Under autocast, to its precision: bytes are exact in it, so the result is what layers would make
    of float32.
    """

    def __init__(self, scale: float | list[Any]) -> None:
        self._scale = torch.tensor(scale) if isinstance(scale, list) else scale

    def __call__(self, obs: Tensor) -> Tensor:
        """Return a new tensor."""
        kind = obs.device.type
        if isinstance(self._scale, Tensor):
            self._scale = self._scale.to(obs.device)
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        # In place: another large tensor would often need pages that the system has to clear.
        return obs.to(dtype).div_(self._scale)


def observation_reader(observation: BoxSpec | PackedSpec) -> Callable[[Tensor], NetworkInput]:
    """Return a function that converts stored observations to network inputs."""
    if isinstance(observation, PackedSpec):
        readers = [_array_reader(box) for _, box in observation.fields]
        return partial(_read_fields, observation, readers)
    return _array_reader(observation)


def input_scale(box: BoxSpec) -> float | list[Any]:
    """Return the divisor of an array for networks: the upper bounds of bytes, otherwise 1.

    One number if all are equal, as in images. Choices are not divided.
    """
    if box.dtype != "uint8" or box.categorical:
        return 1.0
    scale = np.maximum(box.high, 1).astype(np.float64)
    return float(scale.max()) if np.ptp(scale) == 0 else scale.tolist()


def is_image(box: BoxSpec) -> bool:
    """Return whether an array holds a large picture: bytes from 0 to 255, of many rows and columns.

    Smaller ones, such as a board with a plane for each kind of piece, go through no convolutions.
    """
    return input_scale(box) == _LARGEST_BYTE and sorted((1, *box.shape))[-2] >= _MIN_IMAGE_SIDE


def no_observations(observation: BoxSpec | PackedSpec, count: int) -> NetworkInput:
    """Return this number of observations of zeros, as network inputs."""
    dtype = getattr(torch, observation.dtype)
    return observation_reader(observation)(torch.zeros(count, *observation.shape, dtype=dtype))


def _array_reader(box: BoxSpec) -> Callable[[Tensor], Tensor]:
    scale = input_scale(box)
    return as_floats if scale == 1.0 else ScaledBytes(scale)


def as_floats(stored: Tensor) -> Tensor:
    """Read numbers that need no scale; torch 2.11 compiles functions, and not `Tensor.float`."""
    return stored.float()


def _read_fields(
    spec: PackedSpec, readers: Sequence[Callable[[Tensor], Tensor]], packed: Tensor
) -> dict[str, Tensor]:
    lead = packed.shape[:-1]
    return {
        name: read(
            packed[..., start : start + box.nbytes]
            .view(getattr(torch, box.dtype))
            .reshape(*lead, *box.shape)
        )
        for (name, box), start, read in zip(spec.fields, spec.offsets, readers, strict=True)
    }


_WIDE = 512
_FEW_ROWS = range(12, 129)
"""With these numbers of rows, MKL multiplies the weights of layers that are at least so wide by
columns faster than rows by the weights: 1.15 to 1.4 times with 512 units, up to twice with 1024."""


def _has_few_rows(x: Tensor) -> bool:
    """Return whether rows of a CPU are few, and are passed without gradients."""
    return (
        not torch.compiler.is_exporting()  # an export would take these rows only
        and x.device.type == "cpu"
        and x.ndim == 2
        and len(x) in _FEW_ROWS
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


class MLP(nn.Sequential):
    """Linear layers with ReLU in between; the last layer is a head without ReLU.

    Layers are not called as modules: for 64 units the call takes longer than the arithmetic. Hooks
    on them therefore do not run.
    """

    def __init__(self, n_inputs: int, hidden: Sequence[int], n_outputs: int) -> None:
        linear = [nn.Linear(*sizes) for sizes in pairwise([n_inputs, *hidden, n_outputs])]
        between = [module for layer in linear for module in (layer, nn.ReLU())]
        super().__init__(*between[:-1])
        # The parameters of the sequence: a module looks them up by name, which takes a third of the
        # time of a small network.
        self.layers = tuple((layer.weight, layer.bias) for layer in linear)
        """Weight and bias of each layer."""
        *self._hidden, self._head = self.layers
        self._is_wide = min(hidden, default=0) >= _WIDE

    def forward(self, x: Tensor) -> Tensor:
        if self._is_wide and _has_few_rows(x):
            return self._compute_head(self._compute_columns(x.t()).t())
        for weight, bias in self._hidden:
            x = functional.linear(x, weight, bias).relu_()
        if torch.is_autocast_enabled(x.device.type):
            return exactly(self._compute_head, x)
        return functional.linear(x, *self._head)

    def _compute_columns(self, x: Tensor) -> Tensor:
        for weight, bias in self._hidden:
            x = torch.addmm(bias[:, None], weight, x).relu_()
        return x

    def _compute_head(self, features: Tensor) -> Tensor:
        return functional.linear(features, *self._head)


class ImageConv2d(nn.Conv2d):
    """A convolution of images, which have few channels.

    For weight gradients oneDNN needs four times as long with channel-first images as with
    channel-last ones. So images are copied to channel-last where that pays off: only when learning,
    not for bfloat16, and not on a GPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, channels, height, width), in the memory layout of the input."""
        learns = torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        if learns and x.device.type == "cpu":
            x = x.contiguous(memory_format=torch.channels_last)
        return super().forward(x)


def nature_cnn(n_channels: int) -> nn.Sequential:
    """Return the convolutions of Mnih et al. (2015), with flattened outputs."""
    return _convolutions(n_channels, (32, 8, 4), (64, 4, 2), (64, 3, 1))


def small_cnn(n_channels: int) -> nn.Sequential:
    """Return the fewer convolutions of Espeholt et al. (2018), with flattened outputs.

    An update takes about half of the time that it takes with `nature_cnn`.
    """
    return _convolutions(n_channels, (16, 8, 4), (32, 4, 2))


def _convolutions(n_channels: int, *layers: tuple[int, int, int]) -> nn.Sequential:
    """Return layers of (channels, kernel, stride) with ReLU after each, and flattened outputs."""
    made: list[nn.Module] = []
    kind: type[nn.Conv2d] = ImageConv2d
    for n_outputs, kernel, stride in layers:
        made += [kind(n_channels, n_outputs, kernel, stride), nn.ReLU()]
        n_channels, kind = n_outputs, nn.Conv2d
    return nn.Sequential(*made, nn.Flatten())


def small_image_network(spec: EnvSpec) -> nn.Module:
    """Make `small_cnn` and a layer of 256 units, a `network` for PPO and IMPALA on a CPU.

    Observations that are no images go through the usual encoders.
    """
    layers = encoder_layers(spec.observation, small_cnn)
    hidden = nn.Linear(n_features(layers, spec.observation), 256)
    network = nn.Sequential(*layers, hidden, nn.ReLU())
    make_orthogonal(network, math.sqrt(2.0))
    return network


class ChannelsFirst(nn.Module):
    """Transposes images (B, height, width, channels)."""

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, channels, height, width)."""
        return images.permute(0, 3, 1, 2)


class DuelingHead(nn.Module):
    """Q(s, a) = V(s) + A(s, a) - mean over a' of A(s, a'); equation 9 of Wang et al. (2016).

    With several numbers per action, such as logits of a distribution, it applies to each of them.
    """

    def __init__(
        self,
        n_inputs: int,
        hidden: Sequence[int],
        n_actions: int,
        *,
        n_values: int = 1,
        sigma: float | None = None,
    ) -> None:
        """Create streams with `n_values` numbers per action; with a `sigma`, of noisy layers."""
        super().__init__()
        self.n_values = n_values
        self.value = _mlp(n_inputs, hidden, n_values, sigma)
        self.advantage = _mlp(n_inputs, hidden, n_actions * n_values, sigma)

    def forward(self, features: Tensor) -> Tensor:
        """Return (..., n_actions * n_values) of features (..., n_inputs)."""
        advantage: Tensor = self.advantage(features)
        value: Tensor = self.value(features)
        if self.n_values == 1:
            return value + advantage - advantage.mean(dim=-1, keepdim=True)
        advantage = advantage.unflatten(-1, (-1, self.n_values))
        centered = advantage - advantage.mean(dim=-2, keepdim=True)
        return (value.unsqueeze(-2) + centered).flatten(-2)


def of_actions(values: Tensor, action: Tensor) -> Tensor:
    """Return what (N, B, actions) has for one action (B,) of each row, (N, B)."""
    return values.gather(2, action.expand(len(values), -1)[..., None]).squeeze(2)


class OneHot(nn.Module):
    """One-hot encoding of discrete observations: one input per choice.

    The input of the choice taken is the square root of their number, so that the mean square of
    the inputs is 1. With a 1 in its place, states look alike to a first layer, whose initial
    weights shrink with the number of inputs.
    """

    value: Tensor
    place: Tensor
    size: Tensor

    def __init__(self, spec: BoxSpec) -> None:
        super().__init__()
        low, high = spec.low.ravel().tolist(), spec.high.ravel().tolist()
        ranges = [range(first, last + 1) for first, last in zip(low, high, strict=True)]
        values = torch.tensor([value for choices in ranges for value in choices]).float()
        places = torch.tensor([i for i, choices in enumerate(ranges) for _ in choices])
        self.register_buffer("value", values, persistent=False)
        sizes = torch.tensor([math.sqrt(len(choices)) for choices in ranges for _ in choices])
        self.register_buffer("place", places, persistent=False)
        self.register_buffer("size", sizes, persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        """Return (B, all choices) of observations (B, ...)."""
        return (obs.reshape(obs.shape[0], -1)[:, self.place] == self.value) * self.size


class Embedding(nn.Module):
    """Discrete observations of many choices, as a linear layer without bias on `OneHot` has them.

    It looks up rows of the weights instead, and adds those of several numbers.
    """

    low: Tensor
    most: Tensor
    start: Tensor
    size: Tensor

    def __init__(self, spec: BoxSpec) -> None:
        super().__init__()
        low, n = spec.low.ravel().astype(np.int64), _n_choices(spec).ravel()
        for name, numbers in {"low": low, "most": n - 1, "start": n.cumsum() - n}.items():
            self.register_buffer(name, torch.from_numpy(numbers), persistent=False)
        self.register_buffer("size", torch.from_numpy(n).sqrt()[:, None], persistent=False)
        total = int(n.sum())
        self.weight = nn.Parameter(torch.randn(total, _EMBEDDED) / math.sqrt(total))

    def forward(self, obs: Tensor) -> Tensor:
        """Return (B, features) of observations (B, ...)."""
        choice = (obs.reshape(obs.shape[0], -1) - self.low).long().clamp(min=0)
        rows = functional.embedding(choice.minimum(self.most) + self.start, self.weight)
        return (rows * self.size).sum(dim=1)


class FieldsEncoder(nn.Module):
    """Encodes each field of an observation separately, and concatenates the results.

    It leaves out the action mask, which is applied to the outputs.
    """

    def __init__(self, spec: PackedSpec) -> None:
        super().__init__()
        fields = {name: box for name, box in spec.fields if name != ACTION_MASK}
        self.names = [*fields]
        self.encoders = nn.ModuleList(
            nn.Sequential(*encoder_layers(box)) for box in fields.values()
        )

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return (B, features)."""
        fields = zip(self.names, self.encoders, strict=True)
        return torch.cat([encoder(obs[name]) for name, encoder in fields], dim=1)


def encoder_layers(
    observation: BoxSpec | PackedSpec, convolve: Convolve = nature_cnn
) -> list[nn.Module]:
    """Return the layers from observations to (B, features), without hidden layers.

    Images, of any dtype, go through `convolve` unless they are small; those among several fields
    through `nature_cnn`. Discrete observations become `OneHot`, or an `Embedding` of more than 1024
    choices. Several fields are encoded separately. Anything else is flattened.
    """
    if isinstance(observation, PackedSpec):
        return [FieldsEncoder(observation)]
    shape = observation.shape
    if observation.categorical:
        many = _n_choices(observation).sum() > _MAX_CHOICES
        return [Embedding(observation) if many else OneHot(observation)]
    if layers := _image_layers(observation, convolve):
        return layers
    if not shape:
        return [nn.Unflatten(0, (-1, 1))]
    return [nn.Flatten()] if len(shape) > 1 else []


def q_network(
    observation: BoxSpec | PackedSpec,
    hidden: Sequence[int],
    n_actions: int,
    *,
    dueling: bool = False,
    n_values: int = 1,
    sigma: float | None = None,
) -> nn.Sequential:
    """Return a network from float observations to (B, n_actions * n_values).

    The hidden layers follow `encoder_layers`. With `dueling`, each stream has its own copy of the
    last hidden layer. With a `sigma`, all layers after the encoder are noisy.
    """
    layers = encoder_layers(observation)
    n_inputs = n_features(layers, observation)
    network = q_head(n_inputs, hidden, n_actions, dueling=dueling, n_values=n_values, sigma=sigma)
    return nn.Sequential(*layers, network) if layers else network


def q_head(
    n_inputs: int,
    hidden: Sequence[int],
    n_actions: int,
    *,
    dueling: bool = False,
    n_values: int = 1,
    sigma: float | None = None,
) -> nn.Sequential:
    """Return the part of `q_network` after its encoder, from features (..., n_inputs)."""
    if not dueling:
        return _mlp(n_inputs, hidden, n_actions * n_values, sigma)
    shared = hidden[:-1]
    body = hidden_layers(n_inputs, shared, sigma)
    width = shared[-1] if shared else n_inputs
    head = DuelingHead(width, hidden[-1:], n_actions, n_values=n_values, sigma=sigma)
    return nn.Sequential(*body, head)


def hidden_layers(
    n_inputs: int, widths: Sequence[int], sigma: float | None = None
) -> nn.Sequential:
    """Return layers with ReLU after each of them; with a `sigma`, noisy ones."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise([n_inputs, *widths]):
        linear = nn.Linear(wide, narrow) if sigma is None else NoisyLinear(wide, narrow, sigma)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers)


def _mlp(
    n_inputs: int, hidden: Sequence[int], n_outputs: int, sigma: float | None
) -> MLP | NoisyMLP:
    if sigma is None:
        return MLP(n_inputs, hidden, n_outputs)
    return NoisyMLP(n_inputs, hidden, n_outputs, sigma)


def n_features(layers: Sequence[nn.Module], observation: BoxSpec | PackedSpec) -> int:
    """Return the number of features that `encoder_layers` layers output."""
    with torch.no_grad():
        features: Tensor = nn.Sequential(*layers)(no_observations(observation, 1))
    return features.shape[1]


def make_orthogonal(module: nn.Module, gain: float) -> None:
    """Initialise all weights of a module as orthogonal matrices of this gain, and biases as 0."""
    for param in module.parameters():
        if param.ndim > 1:
            nn.init.orthogonal_(param, gain)
        else:
            nn.init.zeros_(param)


def _n_choices(spec: BoxSpec) -> Array:
    """Return the number of choices of each number; raise if there are too many."""
    low, high = spec.low.astype(np.int64), spec.high.astype(np.int64)  # 255 + 1 is 0 in bytes
    n = high - low + 1
    if n.sum() <= _MAX_EMBEDDED and np.abs([low, high]).max(initial=0) <= _EXACT_IN_FLOAT32:
        return n
    raise ConfigError(
        f"discrete observations of {n.sum()} choices from {low.min()} to {high.max()} do not fit "
        f"the default network, which embeds {_MAX_EMBEDDED} within {_EXACT_IN_FLOAT32}; declare "
        "quantities as a Box, split a choice into a MultiDiscrete, or set a custom network"
    )


def _image_layers(spec: BoxSpec, convolve: Convolve) -> list[nn.Module]:
    """Return convolutions if they pay off; raise for bytes of a large image that fit none."""
    if len(spec.shape) != 3:
        return []
    if min(spec.shape[1:]) >= _MIN_IMAGE_SIDE:
        return [*convolve(spec.shape[0])]
    if min(spec.shape[:2]) >= _MIN_IMAGE_SIDE:
        return [ChannelsFirst(), *convolve(spec.shape[2])]
    if sorted(spec.shape)[1] < _MIN_IMAGE_SIDE or spec.dtype != "uint8":
        return []
    raise ConfigError(
        f"images of shape {spec.shape} do not fit the default network, which needs (channels, "
        f"height, width) or (height, width, channels) of at least {_MIN_IMAGE_SIDE}x"
        f"{_MIN_IMAGE_SIDE} pixels; transpose them, or set a custom network"
    )


def n_actions(spec: EnvSpec, algorithm: str) -> int:
    """Return the number of discrete actions; raise for other action spaces."""
    if isinstance(spec.action, DiscreteSpec):
        return spec.action.n
    kind = "several choices at once" if spec.action.categorical else "continuous"
    raise ConfigError(
        f"{algorithm} needs a single discrete action, but these are {kind}, of shape "
        f"{spec.action.shape}; use {('PPO' if spec.action.categorical else 'SAC')}"
    )


def allowed_only(outputs: Tensor, obs: NetworkInput) -> Tensor:
    """Return values or logits (..., actions), near `FORBIDDEN` where the observation's mask is 0.

    Without a mask, or where it allows no action, they are unchanged: an episode may end in a state
    in which nothing can be done.
    """
    if isinstance(obs, Tensor) or ACTION_MASK not in obs:
        return outputs
    forbidden = (obs[ACTION_MASK] == 0.0).to(outputs.dtype)
    # Sums and products only, since exported policies compute this as well. 1 - (1 if nothing is
    # allowed, 0 otherwise) is the factor that leaves such rows unchanged.
    some = forbidden.amin(dim=-1, keepdim=True) - 1.0
    return outputs - forbidden * some * FORBIDDEN


class AllowedOnly(nn.Module):
    """A network of values or logits (B, actions) whose outputs are masked."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: NetworkInput) -> Tensor:
        """Return the masked outputs."""
        return allowed_only(self.network(obs), obs)


def with_mask(network: nn.Module, spec: EnvSpec) -> nn.Module:
    """Return a network whose outputs are masked, if observations have a mask."""
    return AllowedOnly(network) if spec.masked else network
