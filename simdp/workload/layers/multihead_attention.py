"""MultiheadAttention, as torch.nn.MultiheadAttention with the samples first."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Bool, Float, Int
from simdp.workload.layers.arguments import check_heads
from simdp.workload.layers.attention import Attention, KeyPadding
from simdp.workload.layers.base import Module
from simdp.workload.layers.parameter import kaiming_uniform, uniform, xavier_uniform
from simdp.workload.layers.projection import Projection

if TYPE_CHECKING:
    from simdp.workload.graph import GraphBuilder, Value


class MultiheadAttention(Module):
    """Projections to queries, keys and values, attention, and a projection back.

    Attributes
    ----------
    embed_dim : int
        Width of a token.
    num_heads : int
        Heads, each of which has an equal part of the width.
    dropout : float
        Share of the attention's weights that are dropped.
    bias : bool
        Whether the projections have one.
    mask : {"none", "causal"}
        Whether a query looks only at keys up to its own place.
    """

    kind: Literal["multihead_attention"] = "multihead_attention"
    embed_dim: Int = Field(ge=1, le=10**8)
    num_heads: Int = Field(ge=1)
    dropout: Float = Field(0.0, ge=0, le=1)
    bias: Bool = True
    mask: Literal["none", "causal"] = "none"

    most_inputs: ClassVar[int] = 2

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        check_heads("num_heads", self.num_heads, "embed_dim", self.embed_dim)
        return self

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        projections = self.register(graph, cross=len(inputs) > 1)
        return self.attend(graph, projections, inputs[0], inputs[-1])

    def register(self, graph: GraphBuilder, cross: bool) -> list[Projection]:
        """Take the tensors into the model.

        Parameters
        ----------
        graph : GraphBuilder
            The model's.
        cross : bool
            Whether queries and keys come from different inputs.

        Returns
        -------
        list of Projection
            What `attend` calls: one that packs or two that part the way in, and the way back.
        """
        d = self.embed_dim
        # torch: xavier_uniform_ over the packed weight of 3 d rows, and any Linear's way back,
        # which is constructed first, and whose bias is cleared at the end.
        parts, packed = [(0, d), (d, 3 * d)] if cross else [(0, 3 * d)], xavier_uniform(d, 3 * d)
        inward = [self._projection("in_proj", 3 * d, rows, packed.size) for rows in parts]
        back = self._projection("out_proj", d, (0, d), kaiming_uniform(d).size)
        draws = back.parameters()
        if self.bias:
            draws[1:] = [draws[1]._replace(initial=uniform(1 / sqrt(d)))]
        draws += [*inward[0].parameters(), *back.parameters()[1:]]
        for projection in inward:
            graph.register(projection, draws=())
        return [*inward, graph.register(back, draws=draws)]

    def _projection(self, name: str, num_rows: int, rows: tuple[int, int], b: float) -> Projection:
        first, last = rows
        path = f"{self.name}.{name}"
        join = "_" if name == "in_proj" else "."  # in_proj_weight, but out_proj.weight
        return Projection(
            name=path,
            weight=f"{path}{join}weight",
            bias=f"{path}{join}bias" if self.bias else "",
            in_features=self.embed_dim,
            out_features=num_rows,
            first=first,
            last=last,
            bound=b,
        )

    def attend(
        self,
        graph: GraphBuilder,
        projections: list[Projection],
        x: Value,
        memory: Value,
        padding: KeyPadding | None = None,
    ) -> Value:
        """Append to a graph.

        Parameters
        ----------
        graph : GraphBuilder
            The model's.
        projections : list of Projection
            From `register`.
        x, memory : Value
            What asks, and what is looked at: the same for self-attention.
        padding : KeyPadding, optional
            Of the memory.
        """
        *inward, back = projections
        sources = (x, memory)[: len(inward)]
        packed = [graph.call(p, source) for p, source in zip(inward, sources, strict=True)]
        core = Attention(
            name=self.name,
            num_heads=self.num_heads,
            causal=self.mask == "causal",
            dropout=self.dropout,
            pad_id=padding.pad_id if padding else None,
        )
        h = graph.call(core, *packed, *([padding.tokens] if padding else []))
        return graph.call(back, h)
