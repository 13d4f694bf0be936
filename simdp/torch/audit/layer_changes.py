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
from simdp.torch.audit.observation import Observation, mine, unobserved
from simdp.torch.ranks import Patches

SIGNATURE = inspect.signature(functional.batch_norm)


def _arguments(args: Any, kwargs: Any) -> SimpleNamespace:
    """Return the arguments of a call of ``batch_norm`` by name."""
    bound = SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    return SimpleNamespace(**bound.arguments)


class FrozenBatchNorm(Change):
    """Normalises by the running statistics in place of those of the batch."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(functional, "batch_norm", self._normalise)

    def _normalise(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        call = _arguments(args, kwargs)
        if call.running_mean is None:
            channels = call.input.shape[1]
            call.running_mean = call.input.new_zeros(channels)
            call.running_var = call.input.new_ones(channels)
        call.training = False
        return original(**vars(call))


class _Summed(torch.autograd.Function):
    """Sum over ranks; so is its gradient, of a loss that is the mean over ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        total = tensor.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        with unobserved():
            return _Summed.forward(ctx, grads[0])


class SyncedBatchNorm(Change):
    """Normalises by the statistics of all ranks' batches."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(functional, "batch_norm", self._normalise)

    def _normalise(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        call = _arguments(args, kwargs)
        if not call.training or not several_ranks():
            return original(*args, **kwargs)
        mean, var, count, centred = _statistics(call.input)
        if call.running_mean is not None:
            with torch.no_grad():
                whole = var * count / (count - 1)
                call.running_mean.lerp_(mean.to(call.running_mean.dtype), call.momentum)
                call.running_var.lerp_(whole.to(call.running_var.dtype), call.momentum)
        shape = _along_channels(call.input)
        out = centred * (var + call.eps).rsqrt().view(shape)
        if call.weight is not None:
            out = out * call.weight.view(shape) + call.bias.view(shape)
        return out


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
        patches.wrap(functional, "dropout", self._drop, mine)
        patches.wrap(functional, ATTENTION, _attend)

    def _drop(
        self, here: Observation, original: Any, input: Any, p: float = 0.5,
        training: bool = True, inplace: bool = False,
    ) -> Any:  # fmt: skip
        if not training or p == 0:
            return original(input, p, training, inplace)
        samples = _samples(here)
        if len(samples) != input.shape[0]:
            return input
        mask = torch.empty(input.shape, dtype=input.dtype)
        place = here.next_draw()
        for row, sample in enumerate(samples):
            generator = _generator(sample, here.step, place)
            mask[row] = torch.rand(input.shape[1:], generator=generator) >= p
        return input * mask.to(input.device) / (1 - p)


ATTENTION = "scaled_dot_product_attention"


def _samples(here: Observation) -> tuple[int, ...]:
    if here.trained is not None:
        return tuple(here.record.batches[here.trained].samples)
    return tuple(here.rows)


def _generator(sample: int, step: int, place: int) -> Any:
    """Return a generator that depends on a sample, a step and the number of its draw alone."""
    return torch.Generator().manual_seed((sample * 1_000_003 + step * 7919 + place) % 2**62)


class NoDropout(Change):
    """Drops nothing."""

    def patch(self, patches: Patches) -> None:
        patches.put(functional, "dropout", lambda input, *_, **__: input)
        patches.wrap(functional, ATTENTION, _attend)


def _attend(
    original: Any, query: Any, key: Any, value: Any, attn_mask: Any = None,
    dropout_p: float = 0.0, *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """Attend without dropout."""
    return original(query, key, value, attn_mask, 0.0, *args, **kwargs)


class TiedDraws(Change):
    """Draws random numbers of a step by sample, where they have a row for each sample."""

    NAMES = ("randn", "rand", "bernoulli", "normal", "randint")

    def patch(self, patches: Patches) -> None:
        for name in self.NAMES:
            patches.wrap(torch, name, self._draw, mine)

    def _draw(self, here: Observation, original: Any, *args: Any, **kwargs: Any) -> Any:
        numbers, samples = original(*args, **kwargs), _samples(here)
        of_a_step = here.batch is not None and not here.loading and torch.is_grad_enabled()
        if not of_a_step or running() is None or not isinstance(numbers, torch.Tensor):
            return numbers
        if not numbers.ndim or numbers.shape[0] != len(samples):
            return numbers
        place, rows = here.next_draw(), []
        for sample in samples:
            generator = _generator(sample, here.step, place)
            rows.append(original(*args, **{**kwargs, "generator": generator})[:1])
        return torch.cat(rows)
