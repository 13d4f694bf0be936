"""Buckets: what DistributedDataParallel does to a gradient when it is ready, and at the end.

The cluster's ``overheads.hook`` is the time of a gradient's hook with the launches of its copy into
the bucket and of that back, and is charged as the gradient comes in, as in scenarios. The copies'
bytes are counted apart.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

INTO = {aten.mul.out, aten.copy_.default, aten.div_.Scalar, aten.div_.Tensor}
"""How a gradient comes in: divided on its way, as it is where a hook divides, or in its place."""


def beside_launch(func: Any, args: Any, kwargs: Any, hook: float, launch: float) -> float:
    """What a gradient's hook takes beside the launch of an operator, or what that is spared [s].

    Parameters
    ----------
    func : torch._ops.OpOverload
        One of `INTO`.
    args, kwargs
        What it takes.
    hook, launch : float
        The cluster's overhead; what a device takes to launch a kernel [s].

    Returns
    -------
    float
        Below 0 of a gradient that is copied back, 0 of what is no gradient in a bucket.
    """
    copies = func is aten.copy_.default
    if copies and args[1].untyped_storage().bucket and not args[0].untyped_storage().bucket:
        return -min(launch, hook)
    node: Any = torch._C._current_autograd_node()
    if node is None or node.name() != "torch::autograd::AccumulateGrad":
        return 0.0
    storage = (kwargs["out"] if func is aten.mul.out else args[0]).untyped_storage()
    if func is not aten.mul.out and not copies and not storage.bucket:
        return 0.0
    storage.bucket = True
    return max(hook - launch, 0.0)
