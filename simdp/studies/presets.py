"""What the real models of the catalogue ask for: parameters, bytes, arithmetic, buckets."""

from __future__ import annotations

from pydantic import TypeAdapter

from simdp.strategies.ddp import DDP
from simdp.workload.flops import forward_flops
from simdp.workload.models import AnyModel, Model

ITEMSIZE = 4
"""Bytes per parameter in float32."""

SHOWN = 6
"""Buckets that are listed one by one."""


def preset(name: str) -> Model:
    """Make the model that a preset stands for."""
    model: Model = TypeAdapter(AnyModel).validate_python(name)
    return model


def describe(name: str) -> str:
    """One line about a preset, for ``python -m simdp list models``: float32, torch's buckets."""
    model = preset(name)
    elements = model.num_parameters()
    flops = forward_flops(model.graph, model.known_shapes())
    sizes = {parameter.name: parameter.num_elements for parameter in model.parameters()}
    layout = DDP(find_unused_parameters=bool(model.graph.unused)).buckets(
        model.parameters(), model.ready_order(), ITEMSIZE, iteration=1
    )
    buckets = [ITEMSIZE * sum(sizes[name] for name in names) for names in layout]
    return (
        f"{elements:,} parameters, {elements * ITEMSIZE / 1e6:,.1f} MB, "
        f"{flops.products / 1e9:.2f} GFLOP per sample ({_sample(model)}) forward, "
        f"{_listed(buckets)}"
    )


def _sample(model: Model) -> str:
    """What a sample is: ``128 tokens``, or the shape of an image."""
    name, shape = model.graph.inputs[0], model.known_shapes()[0]
    if model.num_tokens(name) is not None:
        return f"{shape[0]} tokens"
    return "x".join(map(str, shape))


def _listed(buckets: list[int]) -> str:
    sizes = [f"{nbytes / 1e6:.1f}" for nbytes in buckets]
    if len(sizes) > SHOWN:
        low, high = min(buckets) / 1e6, max(buckets) / 1e6
        return f"{len(sizes)} buckets of {low:.1f} to {high:.1f} MB"
    return f"bucket{'s' if len(sizes) > 1 else ''} {', '.join(sizes)} MB"
