"""Batch renormalisation, and networks of layers that it normalises; CrossQ's critics and actor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import batch_norm

from asyncrl.agents.parts.networks import Headed, exactly

_EPSILON = 1e-3
_MOMENTUM = 0.01
_R_MAX, _D_MAX = 3.0, 5.0


class BatchRenorm(nn.Module):
    """Normalises features (B, n) by batch statistics at first, and later by running statistics.

    Ioffe 2017, Batch Renormalization, https://arxiv.org/abs/1702.03275. In training mode a batch is
    normalised by its own mean and standard deviation, as in batch normalisation. After
    `warmup_batches`, the result is shifted and scaled to what the running statistics give, within
    limits. In evaluation mode the running statistics are used.
    """

    mean: Tensor
    var: Tensor
    batches: Tensor

    def __init__(self, n_features: int, warmup_batches: int = 100_000) -> None:
        super().__init__()
        self.warmup_batches = warmup_batches
        self.weight, self.bias = (
            nn.Parameter(torch.ones(n_features)),
            nn.Parameter(torch.zeros(n_features)),
        )
        self.register_buffer("mean", torch.zeros(n_features))
        self.register_buffer("var", torch.ones(n_features))
        self.register_buffer("batches", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return normalised features (B, n)."""
        x = x.float()
        weight, bias = self.weight, self.bias
        if not self.training:
            return batch_norm(x, self.mean, self.var, weight, bias, training=False, eps=_EPSILON)
        # (x - mean_B) / std_B, and both statistics: a tenth of the time of var_mean on a CPU
        x, mean, inverse_std = torch.native_batch_norm(
            x, None, None, None, None, training=True, momentum=0.0, eps=_EPSILON
        )
        scale, shift = self.scale_and_shift(mean.detach(), inverse_std.detach())
        return torch.addcmul(shift, x, scale)

    def scale_and_shift(self, mean: Tensor, inverse_std: Tensor) -> tuple[Tensor, Tensor]:
        """Return scale and shift of a normalised batch, and track its statistics."""
        warm = self.batches >= self.warmup_batches
        r, d = self.corrections(mean, inverse_std)
        r, d = torch.where(warm, r, 1.0), torch.where(warm, d, 0.0)
        self.track(mean, inverse_std.pow(-2.0) - _EPSILON)
        return self.weight * r, self.bias + self.weight * d

    @property
    def is_warm(self) -> bool:
        """Whether a batch's statistics are corrected towards the running ones."""
        return int(self.batches) >= self.warmup_batches

    @torch.no_grad()
    def corrections(self, mean: Tensor, inverse_std: Tensor) -> tuple[Tensor, Tensor]:
        """Return scale and shift of a warm, normalised batch; no gradient flows through them."""
        # r = std_B / std, d = (mean_B - mean) / std, within limits
        running = (self.var + _EPSILON).rsqrt()
        r = (running / inverse_std).clamp_(1.0 / _R_MAX, _R_MAX)
        d = ((mean - self.mean) * running).clamp_(-_D_MAX, _D_MAX)
        return r, d

    @torch.no_grad()
    def track(self, mean: Tensor, var: Tensor) -> None:
        """Update the running statistics by those of a batch, and count it."""
        self.mean.lerp_(mean, _MOMENTUM)
        self.var.lerp_(var, _MOMENTUM)
        self.batches.add_(1)


class RenormedLayers(Headed):
    """Normalisation and a linear layer, in turns, with ReLU in between; the last one is a head."""

    def __init__(
        self, n_inputs: int, hidden: Sequence[int], n_outputs: int, warmup_batches: int
    ) -> None:
        layers: list[nn.Module] = []
        for wide, narrow in pairwise([n_inputs, *hidden, n_outputs]):
            norm, linear = BatchRenorm(wide, warmup_batches), nn.Linear(wide, narrow)
            layers += [norm, linear, nn.ReLU(inplace=True)]
        super().__init__(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the last layer."""
        if not _is_fused(x) or not self.training:
            return super().forward(x)
        params = [param for layer in self for param in layer.parameters()]
        return _renormed(x, 1, [*self][::3], params).squeeze(0)


class RenormedCritics(nn.Module):
    """Critics of `RenormedLayers` of one shape, computed together.

    A layer's weights are (critics, outputs, inputs), and one normalisation has the features of all.
    """

    def __init__(
        self, n_critics: int, n_inputs: int, hidden: Sequence[int], warmup_batches: int
    ) -> None:
        super().__init__()
        self.n_critics = n_critics
        each = [RenormedLayers(n_inputs, hidden, 1, warmup_batches) for _ in range(n_critics)]
        linear = [*zip(*(list(critic)[1::3] for critic in each), strict=True)]
        self.norms = nn.ModuleList(
            BatchRenorm(n_critics * wide, warmup_batches) for wide in (n_inputs, *hidden)
        )
        self.weights = nn.ParameterList(_stacked([one.weight for one in of]) for of in linear)
        self.biases = nn.ParameterList(_stacked([one.bias[None] for one in of]) for of in linear)

    def forward(self, obs: Tensor, action: Tensor, count: int | None = None) -> Tensor:
        """Return the first `count` critics' values (critics, B) of actions scaled to [-1, 1]."""
        x = torch.cat([obs, action], dim=1)
        layers = [*zip(self.norms, self.weights, self.biases, strict=True)]
        if self.training and _is_fused(x):
            params = [p for norm, *others in layers for p in (*norm.parameters(), *others)]
            values = _renormed(x, self.n_critics, [*self.norms], params)
        else:
            # torch 2.13 cannot compile folded weights behind the step that has changed them.
            fold = torch.compiler.is_compiling() == self.training
            later = self._folded if fold else self._normalised
            # Inputs may be large and vary little: with a batch's statistics folded in, they cancel.
            layer = self._normalised if self.training else later
            values = x.expand(self.n_critics, -1, -1)
            for hidden in layers[:-1]:
                values, layer = layer(*hidden, values).relu_(), later
            values = exactly(partial(layer, *layers[-1]), values)
        return values.squeeze(2)[:count]

    def _normalised(self, norm: nn.Module, weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
        by_feature = x.transpose(0, 1).flatten(1)
        x = norm(by_feature).unflatten(1, (self.n_critics, -1)).transpose(0, 1)
        return torch.baddbmm(bias, x, weight.mT)

    def _folded(self, norm: nn.Module, weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
        """Multiply by weights that contain the normalisation."""
        assert isinstance(norm, BatchRenorm)  # noqa: S101  # a `ModuleList` has no type of items
        if self.training:
            mean = x.mean(dim=1, keepdim=True)
            inverse_std = ((x - mean).square().mean(dim=1) + _EPSILON).rsqrt().flatten()
            mean = mean.flatten()
            scale, shift = norm.scale_and_shift(mean.detach(), inverse_std.detach())
        else:
            mean, inverse_std = norm.mean, (norm.var + _EPSILON).rsqrt()
            scale, shift = norm.weight, norm.bias
        s = scale * inverse_std
        t = torch.addcmul(shift, mean, s, value=-1.0)
        s, t = s.view(self.n_critics, 1, -1), t.view(self.n_critics, 1, -1)
        return torch.baddbmm(torch.baddbmm(bias, t, weight.mT), x, (weight * s).mT)


def _stacked(params: Sequence[Tensor]) -> Tensor:
    return torch.stack([param.detach() for param in params])


def _is_fused(x: Tensor) -> bool:
    """Whether `_RenormedPass` computes it: it can neither be captured nor compiled."""
    on_cpu = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return on_cpu and not torch.compiler.is_compiling()


def _renormed(
    x: Tensor, count: int, norms: Sequence[nn.Module], params: Sequence[Tensor]
) -> Tensor:
    """Return the outputs (count, B, outputs) of this many networks for the same inputs (B, n)."""
    output: Tensor = _RenormedPass.apply(  # type: ignore[no-untyped-call]  # torch's
        x.float(), count, norms, *params
    )
    return output


class _RenormedPass(torch.autograd.Function):
    """`RenormedLayers` in training mode, with normalisation folded into the linear layers.

    A normalised batch is y = s x + t, with s and t for each feature, so that the layer's output
    W y + c is (W s) x + (W t + c): y is never computed. Backward, the two sums over rows that a
    normalisation needs follow from the gradient of W:

        G        = sum of g x^T          dW = s G + (sum of g) t^T         g: gradient of the output
        sum of g_y     = W^T (sum of g)
        sum of g_y * x = columns of W * G, summed

    This takes no pass over the batch. Apart from rounding, results are those of autograd. Networks
    of one shape are computed together; numbers by feature are vectors with those of all networks.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # torch declares no types of it
        x: Tensor,
        count: int,
        norms: Sequence[BatchRenorm],
        *params: Tensor,
    ) -> Tensor:
        ctx.shapes = [param.shape for param in params]
        saved: list[Tensor | None] = []
        for k, norm in enumerate(norms):
            scale, shift, weight, bias = params[4 * k : 4 * k + 4]
            weight = weight.view(count, -1, weight.shape[-1])
            mean, var = _statistics(x, count)
            inverse_std = (var + _EPSILON).rsqrt_()
            r, d = norm.corrections(mean, inverse_std) if norm.is_warm else (None, None)
            norm.track(mean, var)
            if not k:
                # Inputs may be large and vary little, in which case s x + t would cancel.
                x = (x - mean[: x.shape[1]]).expand(count, -1, -1)
                mean = torch.zeros_like(mean)
            s = scale * inverse_std if r is None else scale * inverse_std * r
            t = torch.addcmul(shift, mean, s, value=-1.0)
            t = t if d is None else t.addcmul_(scale, d)
            folded = weight * s.view(count, 1, -1)
            saved += [x, mean, inverse_std, r, d, s, t, folded, weight]
            constant = torch.baddbmm(bias.view(count, 1, -1), t.view(count, 1, -1), weight.mT)
            x = torch.baddbmm(constant, x, folded.mT)
            if norm is not norms[-1]:
                x.relu_()
        ctx.save_for_backward(*saved)
        return x

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401
        gradient: Tensor,
    ) -> tuple[Tensor | None, ...]:
        saved, count = ctx.saved_tensors, len(gradient)
        found: list[Tensor] = []
        of_input = None
        for first in range(len(saved) - _SAVED, -1, -_SAVED):
            x, mean, inverse_std, r, d, s, t, folded, weight = saved[first : first + _SAVED]
            of_bias = gradient.sum(dim=1, keepdim=True)
            products = gradient.mT.bmm(x)
            of_weight = (products * s.view(count, 1, -1)).addcmul_(of_bias.mT, t.view(count, 1, -1))
            of_y = of_bias.bmm(weight).view(-1)
            # sum of g_y * (x - mean) / std
            spread = (products * weight).sum(dim=1).view(-1).addcmul_(mean, of_y, value=-1.0)
            spread *= inverse_std
            of_scale = spread if r is None else (spread * r).addcmul_(of_y, d)
            found = [of_scale, of_y, of_weight, of_bias, *found]
            if not first and not ctx.needs_input_grad[0]:
                break
            # s (g_y - mean of g_y - (x - mean) / std * mean of g_y * (x - mean) / std)
            share = s / -x.shape[1]
            slope = share * inverse_std * spread
            offset = (share * of_y).addcmul_(mean, slope, value=-1.0)
            constant = torch.addcmul(offset.view(count, 1, -1), x, slope.view(count, 1, -1))
            gradient = constant.baddbmm_(gradient, folded)
            if first:
                # ReLU, in place: this gradient is a new tensor.
                torch.ops.aten.threshold_backward.grad_input(gradient, x, 0, grad_input=gradient)
            else:
                of_input = gradient.sum(dim=0)
        shaped = [one.view(shape) for one, shape in zip(found, ctx.shapes, strict=True)]
        return (of_input, None, None, *shaped)


def _statistics(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return means and variances of the features of each network's batch."""
    batches = [x] if x.ndim == 2 else x.unbind()
    each = [torch.batch_norm_update_stats(batch, None, None, 0.0) for batch in batches]
    means, variances = zip(*each * (count // len(each)), strict=True)
    return torch.cat(means), torch.cat(variances)


_SAVED = 9
"""Tensors that the backward pass of a layer needs."""
