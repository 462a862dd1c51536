"""Networks that agents build when they are given none, and what networks see of observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from asyncrl.core.env import BoxSpec, DiscreteSpec, EnvSpec, PackedSpec
from asyncrl.core.errors import ConfigError


def exactly(head: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
    """Return what a head answers, in float32 where the network computes in less.

    One in double precision keeps it, as torch lets all layers do that are of more than float32.
    Errors and advantages are small differences of values, and bfloat16 tells 1 from 1.004 at best,
    200 from 201.
    """
    kind = features.device.type
    if not torch.is_autocast_enabled(kind):
        return head(features)
    with torch.autocast(kind, enabled=False):
        return head(features.to(torch.promote_types(features.dtype, torch.float32)))


class Headed(nn.Sequential):
    """Layers one after another, of which the last one is a head."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what the last layer answers."""
        *body, head = self
        for layer in body:
            x = layer(x)
        return exactly(head, x)


class NoisyLinear(nn.Linear):
    """A linear layer whose weights are Gaussian, or are their means where there is no noise."""

    noise: Tensor | None
    """(1 or rows, inputs + outputs), for a `Perturbation` to set. None: no noise."""

    def __init__(self, n_inputs: int, n_outputs: int, sigma: float = 0.5) -> None:
        """Make a layer whose spread starts at `sigma` over the root of the inputs."""
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
    """Noisy layers with ReLU between them, and none after the last, which is a head."""

    def __init__(
        self, n_inputs: int, hidden: Sequence[int], n_outputs: int, sigma: float = 0.5
    ) -> None:
        sizes = pairwise([n_inputs, *hidden, n_outputs])
        layers = [module for size in sizes for module in (NoisyLinear(*size, sigma), nn.ReLU())]
        super().__init__(*layers[:-1])


class Perturbation:
    """The noise of all noisy layers of one network, drawn at once; nothing if it has none."""

    def __init__(self, network: nn.Module) -> None:
        self._layers = [m for m in network.modules() if isinstance(m, NoisyLinear)]
        self._sizes = [layer.in_features + layer.out_features for layer in self._layers]
        self.size = sum(self._sizes)
        """Numbers that a row of noise has."""

    def draw(self, random: np.random.Generator, rows: int) -> Tensor:
        """Return noise (rows, size), on the CPU."""
        return self.shape(torch.from_numpy(random.standard_normal((rows, self.size), np.float32)))

    @staticmethod
    def shape(normal: Tensor) -> Tensor:
        """Return f of numbers that are normally distributed."""
        # f(e) = sign(e) sqrt(|e|)
        return normal.abs().sqrt_().copysign_(normal)

    def set(self, noise: Tensor) -> None:
        """Perturb the network, with noise (1 or rows, size), until `clear`."""
        for layer, part in zip(self._layers, noise.split(self._sizes, dim=1), strict=True):
            layer.noise = part

    def clear(self) -> None:
        """Let the network compute with its mean weights."""
        for layer in self._layers:
            layer.noise = None


MakeNetwork = Callable[[EnvSpec], nn.Module]
"""Makes a network of the user's own."""

NetworkInput = Tensor | dict[str, Tensor]
"""Float observations (B, ...), images within [0, 1]; a dict of such if there are several fields."""

_MAX_CHOICES = 1024
"""Up to so many choices in all are told apart one by one; more would make too wide a layer."""

_EXACT_IN_FLOAT32 = 2**24

_MIN_IMAGE_SIDE = 36
"""Pixels that `nature_cnn` needs in height and in width."""


def each_field(obs: NetworkInput, change: Callable[[Tensor], Tensor]) -> NetworkInput:
    """Return observations of which each field has been changed in the same way."""
    if isinstance(obs, Tensor):
        return change(obs)
    return {name: change(field) for name, field in obs.items()}


def as_float(obs: Tensor) -> Tensor:
    """Return observations as networks want them: float32, and bytes (images) within [0, 1]."""
    # In place, since another tensor as large would often be pages that the system has to clear.
    return obs.float().div_(255.0) if obs.dtype == torch.uint8 else obs.float()


def observation_reader(observation: BoxSpec | PackedSpec) -> Callable[[Tensor], NetworkInput]:
    """Return what turns a tensor of observations, as stored, into what networks take."""
    if isinstance(observation, PackedSpec):
        return partial(_read_fields, observation)
    return _array_reader(observation)


def input_scale(box: BoxSpec) -> float:
    """Return what an array is divided by for networks: bytes are, unless they name choices."""
    return 255.0 if box.dtype == "uint8" and not box.categorical else 1.0


def no_observations(observation: BoxSpec | PackedSpec, count: int) -> NetworkInput:
    """Return so many observations of nothing but zeros, as networks take them."""
    dtype = getattr(torch, observation.dtype)
    return observation_reader(observation)(torch.zeros(count, *observation.shape, dtype=dtype))


def _array_reader(box: BoxSpec) -> Callable[[Tensor], Tensor]:
    return Tensor.float if box.categorical else as_float


def _read_fields(spec: PackedSpec, packed: Tensor) -> dict[str, Tensor]:
    lead = packed.shape[:-1]
    return {
        name: _array_reader(box)(
            packed[..., start : start + box.nbytes]
            .view(getattr(torch, box.dtype))
            .reshape(*lead, *box.shape)
        )
        for (name, box), start in zip(spec.fields, spec.offsets, strict=True)
    }


class MLP(nn.Sequential):
    """Linear layers with ReLU between them, and none after the last, which is a head.

    Its layers are computed without calling them as modules, which for 64 units takes longer than
    the arithmetic; so hooks on them do not run.
    """

    def __init__(self, n_inputs: int, hidden: Sequence[int], n_outputs: int) -> None:
        linear = [nn.Linear(*sizes) for sizes in pairwise([n_inputs, *hidden, n_outputs])]
        between = [module for layer in linear for module in (layer, nn.ReLU())]
        super().__init__(*between[:-1])
        self._linear = tuple(linear)  # beside the modules of the sequence, which are the same

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self._linear
        for layer in hidden:
            x = functional.linear(x, layer.weight, layer.bias).relu_()
        return exactly(last.forward, x)


class ImageConv2d(nn.Conv2d):
    """A convolution of images, which have few channels.

    To learn its weights from images that lie channel by channel takes oneDNN four times as long as
    from ones that have the channels of each pixel side by side. So they are copied first, where
    that pays: not where nothing is learned, not for bfloat16, and not on a GPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, channels, height, width), which lie in memory as the images were seen."""
        learns = torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        if learns and x.device.type == "cpu":
            x = x.contiguous(memory_format=torch.channels_last)
        return super().forward(x)


def nature_cnn(n_channels: int) -> nn.Sequential:
    """Make the convolutions of Mnih et al. (2015), and flatten what comes out of them."""
    return nn.Sequential(
        ImageConv2d(n_channels, 32, kernel_size=8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, kernel_size=3, stride=1),
        nn.ReLU(),
        nn.Flatten(),
    )


class DuelingHead(nn.Module):
    """Q(s, a) = V(s) + A(s, a) - mean over a' of A(s, a'); equation 9 of Wang et al. (2016).

    With several numbers for each action, such as logits of a distribution, so is each of these.
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
        """Make streams of so many values for each action, noisy ones if there is a `sigma`."""
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


class OneHot(nn.Module):
    """Turns choices into one input for each: 1 where it is the one taken, else 0."""

    value: Tensor
    place: Tensor

    def __init__(self, spec: BoxSpec) -> None:
        super().__init__()
        low, high = spec.low.ravel().tolist(), spec.high.ravel().tolist()
        ranges = [range(first, last + 1) for first, last in zip(low, high, strict=True)]
        values = torch.tensor([value for choices in ranges for value in choices]).float()
        places = torch.tensor([i for i, choices in enumerate(ranges) for _ in choices])
        self.register_buffer("value", values, persistent=False)
        self.register_buffer("place", places, persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        """Return (B, all choices) of observations (B, ...)."""
        return (obs.reshape(obs.shape[0], -1)[:, self.place] == self.value).float()


class FieldsEncoder(nn.Module):
    """Encodes each field of an observation by itself, and puts the results side by side."""

    def __init__(self, spec: PackedSpec) -> None:
        super().__init__()
        self.names = [name for name, _ in spec.fields]
        self.encoders = nn.ModuleList(nn.Sequential(*encoder_layers(box)) for _, box in spec.fields)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return (B, features)."""
        fields = zip(self.names, self.encoders, strict=True)
        return torch.cat([encoder(obs[name]) for name, encoder in fields], dim=1)


def encoder_layers(observation: BoxSpec | PackedSpec) -> list[nn.Module]:
    """Return the layers from observations to (B, features), with nothing hidden behind them.

    Images (uint8, channels first) go through `nature_cnn` unless they are small, choices become
    `OneHot` unless there are very many, several fields are encoded each by itself, anything else is
    flattened.
    """
    if isinstance(observation, PackedSpec):
        return [FieldsEncoder(observation)]
    shape = observation.shape
    if observation.categorical and _few_choices(observation):
        return [OneHot(observation)]
    if _is_large_image(observation):
        return [*nature_cnn(shape[0])]
    if not shape:
        return [nn.Unflatten(0, (-1, 1))]
    return [nn.Flatten()] if len(shape) > 1 else []


def encoded_mlp(
    observation: BoxSpec | PackedSpec, hidden: Sequence[int], n_outputs: int
) -> nn.Sequential:
    """Make a network from float observations to (B, n_outputs)."""
    layers = encoder_layers(observation)
    network = MLP(n_features(layers, observation), hidden, n_outputs)
    return nn.Sequential(*layers, network) if layers else network


def q_network(
    observation: BoxSpec | PackedSpec,
    hidden: Sequence[int],
    n_actions: int,
    *,
    dueling: bool = False,
    n_values: int = 1,
    sigma: float | None = None,
) -> nn.Sequential:
    """Make a network from float observations to (B, n_actions * n_values).

    Behind `encoder_layers` come the hidden layers. With `dueling`, the last of them is there twice,
    once in each stream. With a `sigma`, all layers behind the encoder are noisy.
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
    """Make what `q_network` has behind its encoder, from features (..., n_inputs)."""
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
    """Make layers with ReLU behind each of them, noisy ones if there is a `sigma`."""
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
    """Return how many features come out of layers that `encoder_layers` has made."""
    with torch.no_grad():
        features: Tensor = nn.Sequential(*layers)(no_observations(observation, 1))
    return features.shape[1]


def make_orthogonal(module: nn.Module, gain: float) -> None:
    """Start all weights of a module as orthogonal matrices of this gain, and its biases as 0."""
    for param in module.parameters():
        if param.ndim > 1:
            nn.init.orthogonal_(param, gain)
        else:
            nn.init.zeros_(param)


def _few_choices(spec: BoxSpec) -> bool:
    low, high = spec.low.astype(np.int64), spec.high.astype(np.int64)  # 255 + 1 is 0 in bytes
    n_choices = int((high - low + 1).sum())
    largest = int(np.abs([low, high]).max(initial=0))
    return n_choices <= _MAX_CHOICES and largest <= _EXACT_IN_FLOAT32


def _is_large_image(spec: BoxSpec) -> bool:
    """Tell what is worth convolutions; an image that is, but does not fit them, is refused."""
    if len(spec.shape) != 3 or spec.dtype != "uint8":
        return False
    if min(spec.shape[1:]) >= _MIN_IMAGE_SIDE:
        return True
    if sorted(spec.shape)[1] < _MIN_IMAGE_SIDE:
        return False
    raise ConfigError(
        f"images of shape {spec.shape} do not fit the default network, which takes (channels, "
        f"height, width) of at least {_MIN_IMAGE_SIDE}x{_MIN_IMAGE_SIDE} pixels; transpose them, "
        "or set a network of your own"
    )


def n_actions(spec: EnvSpec, algorithm: str) -> int:
    """Return how many actions there are to choose from, or refuse other spaces."""
    if isinstance(spec.action, DiscreteSpec):
        return spec.action.n
    kind = "several choices at once" if spec.action.categorical else "continuous"
    raise ConfigError(
        f"{algorithm} chooses among a number of actions, but these are {kind}, of shape "
        f"{spec.action.shape}; use {'PPO' if spec.action.categorical else 'SAC'}"
    )
