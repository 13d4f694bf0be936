"""T5Attention: scores are not scaled, and get a learned bias by how far away the key is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import log
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array, Ints
from simdp.spec import Bool, Float, Int
from simdp.workload.layers import attention_costs
from simdp.workload.layers.arrays.scores import look_back, softmax
from simdp.workload.layers.attention import sample_blocks
from simdp.workload.layers.attention_costs import Work
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError
from simdp.workload.layers.dropout import kept_elements, masked
from simdp.workload.layers.embedding import sums_by_token
from simdp.workload.layers.parameter import Parameter, normal
from simdp.workload.layers.shapes import sequence_shape


class T5Attention(Layer):
    """``softmax(Q K^T + bias) V`` in each head; takes queries, keys and values apart.

    Where ``pad_id`` is given, the tokens that the keys belong to come last. The layers of a stack
    share one bias, which the first of them has looked up.

    Attributes
    ----------
    num_heads : int
        Heads, each of which has an equal part of the width.
    causal : bool
        Whether a query looks only at keys up to its own place.
    bias : str
        Name of the bias's weight, shape `(num_buckets, num_heads)`; empty for none.
    looks_up : bool
        Whether this layer is the first, and is charged for the bias.
    num_buckets, max_distance : int
        Distances that are told apart, and that from which on they are not.
    dropout : float
        Probability that a weight is left out; it is drawn for each sample alone.
    pad_id : int or None
        Keys of this token are looked at by nobody.

    References
    ----------
    Raffel et al., "Exploring the limits of transfer learning with a unified text-to-text
    transformer", JMLR 21, 2020, section 2.1; transformers/models/t5/modeling_t5.py.
    """

    kind: Literal["t5_attention"] = "t5_attention"
    num_heads: Int = Field(ge=1)
    causal: Bool = False
    bias: str = ""
    looks_up: Bool = True
    num_buckets: Int = Field(32, ge=4)
    max_distance: Int = Field(128, ge=2)
    dropout: Float = Field(0.0, ge=0, le=1)
    pad_id: Int | None = None

    autocast: ClassVar[Literal["lower"]] = "lower"

    @property
    def costly(self) -> Literal["product", "fused_attention", "no"]:
        return "no"

    def model_flops(self, inputs: Sequence[Shape]) -> float:
        """Of two products; as of `Attention`."""
        work = self._work(inputs)
        return 4.0 * work.queries * work.keys * work.width

    def parameters(self) -> list[Parameter]:
        shape = (self.num_buckets, self.num_heads)
        return [Parameter(self.bias, shape, normal(1.0))] if self.bias else []

    def _work(self, inputs: Sequence[Shape]) -> Work:
        (queries, width), (keys, _) = (sequence_shape(shape) for shape in inputs[:2])
        wanted = [(queries, width), (keys, width), (keys, width)]
        tokens = [(keys,)] * (self.pad_id is not None)
        if list(inputs) != [*wanted, *tokens] or width % self.num_heads:
            raise ShapeError(
                f"takes queries, keys and values of {self.num_heads} heads, but gets samples of "
                f"shapes {', '.join(map(str, inputs))}"
            )
        heads, pairs = self.num_heads, float(queries * keys)
        if self.causal:
            pairs = queries * keys - keys**2 / 2
        return Work(
            queries, keys, width // heads, heads, heads, pairs, bool(self.dropout), upcast=True
        )

    def output_shape(self, *inputs: Shape) -> Shape:
        work = self._work(inputs)
        return work.queries, work.width

    def _heads(self, array: Array) -> Array:
        """A view of shape `(batch, heads, length, d)`."""
        batch, length, width = array.shape
        split = array.reshape(batch, length, self.num_heads, width // self.num_heads)
        return split.swapaxes(1, 2)

    def _buckets(self, queries: int, keys: int) -> Ints:
        return buckets(queries, keys, not self.causal, self.num_buckets, self.max_distance)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        queries, keys, values = (self._heads(array) for array in inputs[:3])
        y: Array = np.empty(inputs[0].shape, dtype=inputs[0].dtype)
        weights = np.empty((*queries.shape[:3], keys.shape[2]), dtype=y.dtype)
        kept = np.empty(weights.shape, dtype=bool) if self.dropout else None
        added = self._added(run, inputs[0].dtype.name, *weights.shape[2:])
        for part in sample_blocks(weights):
            scores = np.matmul(queries[part], keys[part].swapaxes(2, 3), out=weights[part])
            if added is not None:
                scores += added
            if self.pad_id is not None:
                hidden = np.where(inputs[3][part] == self.pad_id, -np.inf, 0).astype(scores.dtype)
                scores += hidden[:, None, None]
            softmax(scores)
            if kept is not None:
                own = replace(run, samples=run.samples[part])
                kept[part] = kept_elements(own, self.name, self.dropout, scores.shape[1:])
                scores = masked(scores, kept[part], self.dropout)
            np.matmul(scores, values[part], out=self._heads(y)[part])
        return y, (inputs[:3], weights, kept)

    def _added(self, run: Pass, dtype: str, queries: int, keys: int) -> Array | None:
        """Bias and mask, shape `(num_heads or 1, queries, keys)`; None where there is neither."""
        added = None
        if self.bias:
            table = run.parameters[self.bias].T
            added = table[:, self._buckets(queries, keys)]
        if self.causal:
            mask = look_back(queries, keys, 0, None, dtype)[None]
            added = mask if added is None else added + mask
        return added

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        given, weights, kept = saved
        queries, keys, values = (self._heads(array) for array in given)
        gradients = [np.empty(array.shape, dtype=array.dtype) for array in given]
        dqueries, dkeys, dvalues = (self._heads(array) for array in gradients)
        slopes = self._heads(dy)
        dbias = np.zeros(weights.shape[1:], dtype=dy.dtype)
        for part in sample_blocks(weights):
            used = weights[part]
            if kept is not None:
                used = masked(used, kept[part], self.dropout)
            np.matmul(used.swapaxes(2, 3), slopes[part], out=dvalues[part])
            dscores = np.matmul(slopes[part], values[part].swapaxes(2, 3))
            # softmax: dS = P (dP - sum(P dP)), where dropout leaves its share of dP
            dscores *= used
            dscores -= weights[part] * dscores.sum(axis=3, keepdims=True)
            dbias += dscores.sum(axis=0)
            np.matmul(dscores, keys[part], out=dqueries[part])
            np.matmul(dscores.swapaxes(2, 3), queries[part], out=dkeys[part])
        if self.bias:
            self._add_bias(run, dbias)
        found = zip([*gradients, *[None] * (self.pad_id is not None)], needs, strict=True)
        return tuple(gradient if need else None for gradient, need in found)

    def _add_bias(self, run: Pass, dbias: Array) -> None:
        """Add up the slopes of scores whose distance is in one bucket."""
        where = self._buckets(*dbias.shape[1:]).reshape(-1)
        found, sums = sums_by_token(where, dbias.reshape(self.num_heads, -1).T)
        gradient = run.room(self.bias)
        gradient.fill(0)
        gradient[found] = sums
        run.add_gradient(self.bias, gradient)

    # Costs ----------------------------------------------------------------------------------------

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """As of eager attention; the bias is looked up once and added with the mask."""
        work = self._work(inputs)
        nbytes = float(work.num_heads * work.queries * work.keys * itemsize)
        looked_up = [Kernel(0.0, 0.0, 2 * nbytes)] * (bool(self.bias) and self.looks_up)
        return [*looked_up, *attention_costs.eager_forward(work, itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """As of eager attention; the bias gets the sum over the samples, and then by bucket."""
        work = self._work(inputs)
        scores = float(work.num_heads * work.queries * work.keys)
        summed = [Kernel(scores, scores * itemsize, scores * itemsize)] * bool(self.bias)
        sorted_in = [Kernel(0.0, 0.0, 2 * scores * itemsize)] * (bool(self.bias) and self.looks_up)
        return [*attention_costs.eager_backward(work, itemsize), *summed, *sorted_in]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return attention_costs.eager_kept(self._work(inputs), itemsize, (0, 1, 2))

    def evaluated(self) -> Layer:
        return self.model_copy(update={"dropout": 0.0})


@lru_cache(maxsize=16)
def buckets(queries: int, keys: int, both_ways: bool, num_buckets: int, max_distance: int) -> Ints:
    """In which bucket the distance of each query and key is, shape `(queries, keys)`.

    Half of the buckets are for one distance each, the others for ranges that grow exponentially.
    The logarithm is taken in float32, as transformers does, so that borders are the same.

    Parameters
    ----------
    queries, keys : int
        How many there are.
    both_ways : bool
        Whether keys after the query have buckets of their own, half of all; else they are as near
        as its own place.
    num_buckets, max_distance : int
        How many there are; from which distance on all are in the last one.
    """
    distance = np.arange(keys) - np.arange(queries)[:, None]
    found = np.zeros((queries, keys), dtype=np.int64)
    if both_ways:
        num_buckets //= 2
        found += (distance > 0) * num_buckets
        distance = np.abs(distance)
    else:
        distance = -np.minimum(distance, 0)
    exact = num_buckets // 2
    growth = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    share = growth / np.float32(log(max_distance / exact)) * np.float32(num_buckets - exact)
    far = np.minimum(exact + share.astype(np.int64), num_buckets - 1)
    found += np.where(distance < exact, distance, far)
    found.setflags(write=False)  # it is handed out again and again
    return found
