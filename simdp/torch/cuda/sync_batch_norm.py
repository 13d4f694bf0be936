"""What torch's SyncBatchNorm calls on a GPU and has no kernel for on a CPU: its five functions.

Variances are those of the batch, as CUDA's kernels compute them; sums may be in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from simdp.torch.cuda.machine import machine
from simdp.torch.cuda.moving import place_of
from simdp.torch.cuda.patches import Patches
from simdp.torch.kernels.sizes import Launched, Sizes


def patch(patches: Patches) -> None:
    """Let them run on virtual devices."""
    for function, passes in FUNCTIONS.items():
        name = function.__name__
        patches.wrap(torch, name, partial(_charged, function=function, passes=passes))


def _charged(real: Any, function: Callable[..., Any], passes: tuple[float, float]) -> Any:
    """The function at the cost of one kernel: FLOPs and passes per number of the first tensor."""

    def call(first: Any, *others: Any) -> Any:
        here, place = machine(), place_of(first)
        if here is None or place < 0:
            return real(first, *others)
        with here.silence():
            found = function(first, *others)
        kernel = Sizes(passes[0] * first.numel(), passes[1] * first.numel())
        seconds = here.devices[place].speed.seconds(
            Launched((kernel,)), first.dtype, first.element_size()
        )
        backward = torch._C._current_graph_task_id() >= 0
        here.charge(place, seconds, "backward" if backward else "forward")
        return found

    return call


def _axes(x: Any) -> list[int]:
    return [0, *range(2, x.ndim)]


def _along(values: Any, x: Any) -> Any:
    """Numbers of the channels, as they stand beside a batch."""
    return values.view(1, -1, *[1] * (x.ndim - 2))


def batch_norm_stats(x: Any, eps: float) -> tuple[Any, Any]:
    """Mean and 1 / standard deviation of each channel."""
    variance, mean = torch.var_mean(x, _axes(x), correction=0)
    return mean, (variance + eps).rsqrt()


def batch_norm_gather_stats_with_counts(
    x: Any,
    means: Any,
    inverses: Any,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
    counts: Any,
) -> tuple[Any, Any]:
    """Mean and 1 / standard deviation over all ranks, each with its mean and its count."""
    weights = counts.view(-1, 1).to(means.dtype)
    count = weights.sum()
    mean = (means * weights).sum(0) / count
    squares = inverses.reciprocal().square() - eps + (means - mean).square()
    variance = (squares * weights).sum(0) / count
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
        unbiased = variance * count / (count - 1)
        running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
    return mean, (variance + eps).rsqrt()


def batch_norm_elemt(x: Any, weight: Any, bias: Any, mean: Any, inverse: Any, eps: float) -> Any:
    """Apply the statistics."""
    y = (x - _along(mean, x)) * _along(inverse, x)
    if weight is not None:
        y = y * _along(weight, x) + _along(bias, x)
    return y.to(x.dtype)


def batch_norm_backward_reduce(
    dy: Any,
    x: Any,
    mean: Any,
    inverse: Any,
    weight: Any,
    of_input: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[Any, Any, Any, Any]:
    """A rank's sums of the slopes, and of these times the input less its mean."""
    sums = dy.sum(_axes(dy)).to(mean.dtype)
    projected = (dy * (x - _along(mean, x))).sum(_axes(dy)).to(mean.dtype)
    kind = mean.dtype if weight is None else weight.dtype
    return sums, projected, (projected * inverse).to(kind), sums.to(kind)


def batch_norm_backward_elemt(
    dy: Any,
    x: Any,
    mean: Any,
    inverse: Any,
    weight: Any,
    sums: Any,
    projected: Any,
    counts: Any,
) -> Any:
    """The input's slope, of the sums of all ranks."""
    count = counts.sum()
    share = _along(projected / count * inverse.square(), x)
    slope = dy - _along(sums / count, x) - (x - _along(mean, x)) * share
    scale = inverse if weight is None else inverse * weight
    return (slope * _along(scale, x)).to(x.dtype)


FUNCTIONS: dict[Callable[..., Any], tuple[float, float]] = {
    batch_norm_stats: (4.0, 1.0),
    batch_norm_gather_stats_with_counts: (0.0, 0.0),
    batch_norm_elemt: (4.0, 2.0),
    batch_norm_backward_reduce: (4.0, 2.0),
    batch_norm_backward_elemt: (5.0, 3.0),
}
"""FLOPs and passes over the batch, as `simdp.workload.layers.batch_norm` counts them."""
