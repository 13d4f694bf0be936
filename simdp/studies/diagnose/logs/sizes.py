"""Finds the tensors of models that a number of elements, or of bytes, belongs to.

A collective moves one tensor, consecutive ones (a bucket of DDP, in order of registration or its
reverse), a block, or what lies outside of the blocks (units of FSDP), possibly padded to a multiple
of the ranks. An allocation that fails is one of these, a rank's shard of all parameters, or the
logits. Sizes of several models may be equal: then all are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from math import prod
from typing import NamedTuple

from pydantic import ValidationError

from simdp.errors import ScenarioError
from simdp.spec import problems
from simdp.workload.models import PRESETS, read_model

LEAST = 65_536  # elements below which many tensors have equal sizes
MOST_MODELS = 3  # models that are named

ITEMSIZES = {4: "float32", 2: "16 bits", 8: "Adam's two float32 states"}
"""Bytes per element of what is allocated."""

SHARDS = (1, 2, 4, 8, 16, 32, 64, 128)  # ranks among which parameters are sharded

TOKENS = tuple(2**power for power in range(9, 18))
"""Tokens of a micro-batch whose logits may be allocated."""


class Tensor(NamedTuple):
    """A parameter."""

    name: str
    shape: tuple[int, ...]
    num_elements: int


class SizeMatch(NamedTuple):
    """Tensors with a given size."""

    model: str
    what: str  # which tensors, in words
    how: str  # the size as a product or a sum; empty if there is nothing to write
    rank: int  # the less, the more specific


class KnownModels:
    """Parameters of models by name.

    Parameters
    ----------
    given : mapping of str to object
        Models as in YAML; without any, all presets.

    Raises
    ------
    ScenarioError
        If one is invalid.
    """

    def __init__(self, given: Mapping[str, object] | None = None) -> None:
        self.tensors = {name: made_tensors(name, raw) for name, raw in (given or {}).items()}
        self.is_given = bool(self.tensors)
        if not self.tensors:
            self.tensors = preset_tensors()

    def of_elements(self, count: int | None, world_size: int | None = None) -> list[SizeMatch]:
        """Find tensors of so many elements, the most specific first."""
        if count is None or count < LEAST:
            return []
        matches = [
            match
            for model, tensors in self.tensors.items()
            if (match := _of_model(model, tensors, count, world_size or 1))
        ]
        return sorted(matches, key=lambda match: match.rank)

    def of_bytes(self, nbytes: float, rounding: float) -> list[SizeMatch]:
        """Find what has so many bytes, to the given rounding, the most specific first."""
        matches = [
            match
            for model, tensors in self.tensors.items()
            for match in _of_allocation(model, tensors, nbytes, rounding)
        ]
        return sorted(matches, key=lambda match: match.rank)


@cache
def preset_tensors() -> dict[str, tuple[Tensor, ...]]:
    """Parameters of all presets."""
    return {name: made_tensors(name, name) for name in PRESETS}


def made_tensors(name: str, raw: object) -> tuple[Tensor, ...]:
    """Parameters of a model as in YAML, in order of registration."""
    try:
        model = read_model(raw)
    except ValidationError as error:
        lines = [f"{name}: {problem.line}" for problem in problems(error, raw)]
        raise ScenarioError(lines) from None
    return tuple(
        Tensor(parameter.name, tuple(parameter.shape), prod(parameter.shape))
        for parameter in model.graph.parameters
    )


def in_words(matches: Sequence[SizeMatch]) -> str:
    """Write what matches best: ``152,064 x 3,584: embedding or head of qwen2.5-7b``."""
    if not matches:
        return ""
    best = [match for match in matches if match.rank == matches[0].rank]
    first = best[0]
    same = list(dict.fromkeys(m.model for m in best if (m.what, m.how) == (first.what, first.how)))
    others = len({match.model for match in best} - set(same))
    listed = ", ".join(same[:MOST_MODELS])
    more = f" and {len(same) - MOST_MODELS} more" if len(same) > MOST_MODELS else ""
    lead = f"{first.how}: " if first.how else ""
    also = f" (or of {others} other model{'s' * (others > 1)})" if others else ""
    return f"{lead}{first.what} of {listed}{more}{also}"


# Elements -----------------------------------------------------------------------------------------


def _of_model(
    model: str, tensors: Sequence[Tensor], count: int, world_size: int
) -> SizeMatch | None:
    single = [tensor for tensor in tensors if tensor.num_elements == count]
    if single:
        shape = " x ".join(f"{size:,}" for size in single[0].shape)
        return SizeMatch(model, _roles(single), shape, 0)
    pad = range(count, count - world_size, -1)
    for place, (what, total) in enumerate(_units(tensors)):
        if total in pad:
            padded = f" padded to {world_size} ranks" if total != count else ""
            shape = f"{total:,} parameters" * (total != count)
            return SizeMatch(model, f"{what}{padded}", shape, 1 + place)
    windows = list(_windows(tensors, count))
    if not windows:
        return None
    begin, end = windows[-1]  # backward begins at the end
    where = f"{tensors[begin].name} to {tensors[end - 1].name},"
    places = f" at {len(windows)} places, for example" if len(windows) > 1 else ","
    return SizeMatch(model, f"{end - begin} consecutive tensors{places} {where}", "", 6)


def _roles(tensors: Sequence[Tensor]) -> str:
    """``embedding or head``, or the name of the tensor without the number of its layer."""
    roles = list[str]()
    for tensor in tensors:
        plain = re.sub(r"\.\d+\.", ".*.", tensor.name)
        if re.search(r"embed|wte|word_emb", plain):
            plain = "embedding"
        elif re.search(r"lm_head|embed_out|head\.weight|decoder\.weight", plain):
            plain = "head"
        if plain not in roles:
            roles.append(plain)
    more = f" and {len(roles) - 3} others" if len(roles) > 3 else ""
    return " or ".join(roles[:3]) + more


def _block_of(name: str) -> str:
    """``model.layers.3`` of a parameter in a block; empty outside."""
    match = re.match(r"(.*?\.\d+)\.", name)
    return match[1] if match else ""


def _units(tensors: Sequence[Tensor]) -> Iterator[tuple[str, int]]:
    """Units of FSDP, and the whole: in words, and their elements."""
    blocks = dict[str, int]()
    for tensor in tensors:
        block = _block_of(tensor.name)
        blocks[block] = blocks.get(block, 0) + tensor.num_elements
    outside = blocks.pop("", 0)
    sizes = dict.fromkeys(blocks.values())
    if len(sizes) == 1 and len(blocks) > 1:
        yield "one block", next(iter(sizes))
    if outside and blocks:
        yield "all parameters outside of the blocks (FSDP's root unit)", outside
    yield "all parameters", sum(tensor.num_elements for tensor in tensors)


def _windows(tensors: Sequence[Tensor], count: int) -> Iterator[tuple[int, int]]:
    """First and one past the last of consecutive tensors with that sum."""
    ends = list(accumulate((tensor.num_elements for tensor in tensors), initial=0))
    begin = 0
    for end in range(1, len(ends)):
        while ends[end] - ends[begin] > count:
            begin += 1
        if ends[end] - ends[begin] == count and end - begin > 1:
            yield begin, end


# Bytes --------------------------------------------------------------------------------------------


def _of_allocation(
    model: str, tensors: Sequence[Tensor], nbytes: float, rounding: float
) -> Iterator[SizeMatch]:
    total = sum(tensor.num_elements for tensor in tensors)
    if total < 10**8:  # many sizes of small models are alike
        return
    shards = [
        (ranks, size)
        for size in ITEMSIZES
        for ranks in SHARDS
        if abs(total / ranks * size - nbytes) <= rounding
    ]
    if shards:
        ways = [f"{ITEMSIZES[size]} on {ranks} rank{'s' * (ranks > 1)}" for ranks, size in shards]
        ranks, size = shards[0]
        how = f"{total:,} / {ranks} x {size} bytes"
        yield SizeMatch(model, f"each rank's shard of all parameters ({' or '.join(ways)})", how, 0)
    largest = max(tensors, key=lambda tensor: tensor.num_elements)
    for size in (4, 2):
        if abs(largest.num_elements * size - nbytes) <= rounding:
            shape = " x ".join(f"{side:,}" for side in largest.shape)
            what = f"{_roles([largest])}, {ITEMSIZES[size]},"
            yield SizeMatch(model, what, f"{shape} x {size} bytes", 1)
    vocabulary = max((t.shape[0] for t in tensors if len(t.shape) == 2), default=0)
    for tokens in TOKENS:
        for size in (2, 4):
            if vocabulary > 10_000 and abs(tokens * vocabulary * size - nbytes) <= rounding:
                how = f"{tokens:,} x {vocabulary:,} x {size} bytes"
                yield SizeMatch(model, f"logits of {tokens:,} tokens, {ITEMSIZES[size]},", how, 2)
