"""Fine-tuning: frozen parameters, LoRA adapters and 4-bit base weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from pydantic import Field

from simdp.spec import Bool, Float, Int, Spec
from simdp.workload.layers.base import Kept, Kernel, ModelGraph, Shape


class Lora(Spec):
    """``y = W x + b + (alpha / rank) B A x`` instead of ``W x + b``; only A and B are trained.

    A starts as torch's Linear does, and B at 0, so that the model's outputs start unchanged. All
    other parameters are frozen. The adapters are named as in PEFT,
    ``<layer>.lora_A.default.weight`` of shape ``(rank, in_features)`` and
    ``<layer>.lora_B.default.weight`` of shape ``(out_features, rank)``.

    References
    ----------
    Hu et al., "LoRA: low-rank adaptation of large language models", arXiv 2106.09685; peft,
    tuners/lora/layer.py.
    """

    rank: Int = Field(8, ge=1, le=10**6)
    """Width between A and B."""
    alpha: Float = Field(8.0, gt=0)
    """The adapter's output is multiplied by ``alpha / rank``."""
    targets: tuple[str, ...] = Field(min_length=1)
    """Linear layers that get an adapter, by the end of their names, such as ``q_proj``, or by
    patterns as in an optimizer's groups."""
    dropout: Float = Field(0.0, ge=0, lt=1)
    """Of the input of A."""


class Quantized(Spec):
    """Weights of linear layers in 4-bit NormalFloat (NF4): frozen, for timing only.

    A weight is stored, sharded and gathered as half a byte for each element, packed into the dtype
    of the other weights. Scales of its blocks stay whole on every rank. Before each use, in
    forward, in backward and when a block runs again, kernels read all of it and write it in the
    compute dtype of the layer.

    References
    ----------
    Dettmers et al., "QLoRA: efficient finetuning of quantized LLMs", arXiv 2305.14314, section 3;
    bitsandbytes, nn/modules.py (Params4bit, ``quant_storage``).
    """

    targets: tuple[str, ...] = Field(min_length=1)
    """Linear layers, by the end of their names, such as ``q_proj``, or by patterns as in an
    optimizer's groups."""
    block: Int = Field(64, ge=1, le=4096)
    """Elements that share a scale."""
    double: Bool = True
    """Whether scales have 8 bits, and scales of their own: 0.127 bits per element instead of
    0.5."""


# Frozen -------------------------------------------------------------------------------------------


def matching(patterns: Sequence[str], names: Iterable[str]) -> frozenset[str]:
    """Names that match one of some patterns, as in an optimizer's groups."""
    return frozenset(n for n in names if any(fnmatchcase(n, pattern) for pattern in patterns))


def ends_match(name: str, targets: Sequence[str]) -> bool:
    """Whether a layer's dotted name, or an end of it, matches one of some patterns."""
    return bool(matching([*targets, *(f"*.{target}" for target in targets)], [name]))


def with_frozen(graph: ModelGraph, patterns: Sequence[str]) -> ModelGraph:
    """Freeze the matching parameters of a graph, besides those already frozen."""
    names = matching(patterns, [parameter.name for parameter in graph.parameters])
    return replace(graph, frozen=graph.frozen | names)


def backward_kernels(
    graph: ModelGraph, number: int, inputs: Sequence[Shape], itemsize: int
) -> list[Kernel]:
    """Kernels of a call's backward, without those that only frozen parameters would need.

    These are the kernels that run if no input needs a gradient, in layers with
    `Layer.splits_backward`; other layers are charged in full. If each parameter has a kernel, those
    of frozen ones are left out; else all, if all parameters are frozen. ``number`` is the call's.
    """
    layer, needs = graph.calls[number].layer, graph.needs[number]
    if not graph.frozen:
        return layer.backward_cost(inputs, itemsize, needs)
    if not graph.flows[number]:
        return []
    kernels = layer.backward_cost(inputs, itemsize, needs)
    names, learned = layer.ready_order(), graph.learned(number)
    if len(learned) == len(names) or not layer.splits_backward:
        return kernels
    of_parameters = layer.backward_cost(inputs, itemsize, [False] * len(needs))
    spared = of_parameters if not learned else []
    if len(of_parameters) == len(names):
        pairs = zip(names, of_parameters, strict=True)
        spared = [kernel for name, kernel in pairs if name not in learned]
    return list((Counter(kernels) - Counter(spared)).elements())


def kept_of(graph: ModelGraph, number: int, inputs: Sequence[Shape], itemsize: int) -> Kept:
    """Values that a call keeps for backward, without those that only frozen parameters would need.

    A product needs its input only for its weight's gradient, and a call without backward needs
    nothing.
    """
    layer = graph.calls[number].layer
    if not graph.frozen:
        return layer.kept(inputs, itemsize)
    if not graph.flows[number]:
        return Kept()
    matrices = [p.name for p in layer.parameters() if len(p.shape) > 1]
    if layer.keeps_for_weights and graph.frozen.issuperset(matrices):
        return Kept()
    return layer.kept(inputs, itemsize)


def learned_elements(graph: ModelGraph, number: int) -> int:
    """Elements of a call's parameters that are not frozen."""
    learned = set(graph.learned(number))
    layer = graph.calls[number].layer
    return sum(p.num_elements for p in layer.parameters() if p.name in learned)
