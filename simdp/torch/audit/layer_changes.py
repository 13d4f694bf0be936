"""Changes of layers that draw random numbers or take statistics of a batch."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from simdp.torch.audit.changes import Change, several_ranks
from simdp.torch.audit.lines import running
from simdp.torch.audit.observation import mine, unobserved
from simdp.torch.ranks import Patches

SIGNATURE = inspect.signature(functional.batch_norm)


def _arguments(args: Any, kwargs: Any) -> SimpleNamespace:
    """Return the arguments of a call of ``batch_norm`` by name."""
    found = SIGNATURE.bind(*args, **kwargs)
    found.apply_defaults()
    return SimpleNamespace(**found.arguments)


class FrozenBatchNorm(Change):
    """Normalises by the running statistics in place of those of the batch."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(functional, "batch_norm", self._around)

    def _around(self, original: Any) -> Any:
        def batch_norm(*args: Any, **kwargs: Any) -> Any:
            given = _arguments(args, kwargs)
            if given.running_mean is None:
                channels = given.input.shape[1]
                given.running_mean = given.input.new_zeros(channels)
                given.running_var = given.input.new_ones(channels)
            given.training = False
            return original(**vars(given))

        return batch_norm


class _Summed(torch.autograd.Function):
    """Sum over ranks; so is its gradient, of a loss that is the mean over ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        found = tensor.contiguous().clone()
        dist.all_reduce(found)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        found = grads[0].contiguous().clone()
        with unobserved():
            dist.all_reduce(found)
        return found


class SyncedBatchNorm(Change):
    """Normalises by the statistics of all ranks' batches."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(functional, "batch_norm", self._around)

    def _around(self, original: Any) -> Any:
        def batch_norm(*args: Any, **kwargs: Any) -> Any:
            given = _arguments(args, kwargs)
            if not given.training or not several_ranks():
                return original(*args, **kwargs)
            mean, var, count, centred = _statistics(given.input)
            if given.running_mean is not None:
                with torch.no_grad():
                    whole = var * count / (count - 1)
                    given.running_mean.lerp_(mean.to(given.running_mean.dtype), given.momentum)
                    given.running_var.lerp_(whole.to(given.running_var.dtype), given.momentum)
            shape = _along_channels(given.input)
            out = centred * (var + given.eps).rsqrt().view(shape)
            if given.weight is not None:
                out = out * given.weight.view(shape) + given.bias.view(shape)
            return out

        return batch_norm


def _along_channels(input: Any) -> list[int]:
    return [1, -1, *([1] * (input.ndim - 2))]


def _statistics(input: Any) -> tuple[Any, Any, float, Any]:
    """Return the mean, variance and number of values of a channel on all ranks, and the rest."""
    axes = [axis for axis in range(input.ndim) if axis != 1]
    with unobserved():
        number = torch.tensor(float(input.numel() // input.shape[1]), dtype=input.dtype)
        dist.all_reduce(number)
        count = float(number)
        mean = _Summed.apply(input.sum(axes)) / count
        centred = input - mean.view(_along_channels(input))
        var = _Summed.apply(centred.pow(2).sum(axes)) / count
    return mean, var, count, centred


class TiedDropout(Change):
    """Draws each sample's dropout by its index and the step, on whichever rank it is."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(functional, "dropout", self._dropout)
        patches.wrap(functional, "scaled_dot_product_attention", _without_attention_dropout)

    def _dropout(self, original: Any) -> Any:
        def dropout(
            input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
        ) -> Any:
            here = mine()
            if here is None or not training or p == 0:
                return original(input, p, training, inplace)
            samples = _samples(here)
            if len(samples) != input.shape[0]:
                return input
            mask = torch.empty(input.shape, dtype=input.dtype)
            place = here.next_draw()
            for row, sample in enumerate(samples):
                drawn = _generator(sample, here.step, place)
                mask[row] = torch.rand(input.shape[1:], generator=drawn) >= p
            return input * mask.to(input.device) / (1 - p)

        return dropout


def _samples(here: Any) -> tuple[int, ...]:
    if here.trained is not None:
        return tuple(here.record.batches[here.trained].samples)
    return tuple(here.rows)


def _generator(sample: int, step: int, place: int) -> Any:
    """Return a generator that depends on a sample, a step and the number of its draw alone."""
    return torch.Generator().manual_seed((sample * 1_000_003 + step * 7919 + place) % 2**62)


class NoDropout(Change):
    """Drops nothing."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(functional, "dropout", lambda original: lambda input, *_, **__: input)
        patches.wrap(functional, "scaled_dot_product_attention", _without_attention_dropout)


def _without_attention_dropout(original: Any) -> Any:
    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        return original(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return scaled_dot_product_attention


class TiedDraws(Change):
    """Draws random numbers of a step by sample, where they have a row for each sample."""

    NAMES = ("randn", "rand", "bernoulli", "normal", "randint")

    def patch(self, patches: Patches) -> None:
        for name in self.NAMES:
            patches.wrap(torch, name, self._around)

    def _around(self, original: Any) -> Any:
        def draw(*args: Any, **kwargs: Any) -> Any:
            here = mine()
            if here is None or here.batch is None or here.loading or running() is None:
                return original(*args, **kwargs)
            if not torch.is_grad_enabled():
                return original(*args, **kwargs)
            samples = _samples(here)
            found = original(*args, **kwargs)
            if not isinstance(found, torch.Tensor) or not found.ndim:
                return found
            if found.shape[0] != len(samples):
                return found
            place, rows = here.next_draw(), []
            for sample in samples:
                drawn = _generator(sample, here.step, place)
                rows.append(original(*args, **{**kwargs, "generator": drawn})[:1])
            return torch.cat(rows)

        return draw
