"""What encoder and decoder layers of a transformer share: their arguments and sublayers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Bool, Float, Int
from simdp.workload.layers.activations import activation
from simdp.workload.layers.add import Add
from simdp.workload.layers.arguments import check_heads
from simdp.workload.layers.base import Module
from simdp.workload.layers.dropout import Dropout
from simdp.workload.layers.layer_norm import LayerNorm
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.multihead_attention import MultiheadAttention
from simdp.workload.layers.parameter import Parameter, copy_of

if TYPE_CHECKING:
    from simdp.workload.graph import GraphBuilder, Value


class TransformerLayer(Module):
    """Base of the layers that torch.nn.Transformer is made of, with torch's arguments.

    Attributes
    ----------
    d_model : int
        Width of a token.
    nhead : int
        Heads of the attention, each of which has an equal part of the width.
    dim_feedforward : int
        Width between the two linear maps.
    dropout : float
        Behind each sublayer, between the linear maps, and of the attention's weights.
    activation : {"relu", "gelu"}
        Between the linear maps.
    layer_norm_eps : float
        Added to the variance by every norm.
    norm_first : bool
        Pre-LN: normalise what goes into a sublayer, instead of the sum that comes out.
    bias : bool
        Whether maps, projections and norms have one.
    """

    d_model: Int = Field(ge=1, le=10**8)
    nhead: Int = Field(ge=1)
    dim_feedforward: Int = Field(2048, ge=1, le=10**8)
    dropout: Float = Field(0.1, ge=0, le=1)
    activation: Literal["relu", "gelu"] = "relu"
    layer_norm_eps: Float = Field(1e-5, ge=0)
    norm_first: Bool = False
    bias: Bool = True

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        check_heads("nhead", self.nhead, "d_model", self.d_model)
        return self

    def attention(self, name: str, mask: Literal["none", "causal"]) -> MultiheadAttention:
        """One of the attention blocks, by its name in torch."""
        return MultiheadAttention(
            name=f"{self.name}.{name}",
            embed_dim=self.d_model,
            num_heads=self.nhead,
            dropout=self.dropout,
            bias=self.bias,
            mask=mask,
        )

    def norm(self, number: int) -> LayerNorm:
        """One of the norms, ``norm1`` and on."""
        return LayerNorm(
            name=f"{self.name}.norm{number}",
            normalized_shape=self.d_model,
            eps=self.layer_norm_eps,
            bias=self.bias,
        )

    def linear(self, number: int) -> Linear:
        """One of the maps of the feed-forward sublayer, ``linear1`` or ``linear2``."""
        wide, narrow = self.dim_feedforward, self.d_model
        return Linear(
            name=f"{self.name}.linear{number}",
            in_features=narrow if number == 1 else wide,
            out_features=wide if number == 1 else narrow,
            bias=self.bias,
        )

    def feedforward(self, graph: GraphBuilder, linears: Sequence[Linear], x: Value) -> Value:
        """Append ``linear2(dropout(activation(linear1(x))))``."""
        act = activation(self.activation, f"{self.name}.{self.activation}")
        h = graph.call(act, graph.call(linears[0], x))
        return graph.call(linears[1], self.drop(graph, "dropout", h))

    def drop(self, graph: GraphBuilder, name: str, x: Value) -> Value:
        """Append a dropout, if there is any."""
        if not self.dropout:
            return x
        return graph.call(Dropout(name=f"{self.name}.{name}", p=self.dropout), x)

    def residual(
        self,
        graph: GraphBuilder,
        number: int,
        norm: LayerNorm,
        x: Value,
        sublayer: Callable[[Value], Value],
    ) -> Value:
        """Append a sublayer, its dropout, the sum with what went in, and the norm."""
        h = sublayer(graph.call(norm, x) if self.norm_first else x)
        h = self.drop(graph, f"dropout{number}", h)
        total = graph.call(Add(name=f"{self.name}.add{number}"), x, h)
        return total if self.norm_first else graph.call(norm, total)


def with_copies(draws: Sequence[Parameter]) -> list[Parameter]:
    """Draw the first layer of each stack alone: nn.TransformerEncoder copies the one it is given.

    Layers are told apart by the last number in a parameter's name.
    """
    found = []
    for parameter in draws:
        stack = re.match(r"(.*\.layers\.|layers\.)(\d+)(\..*)", parameter.name)
        if stack and int(stack[2]):
            parameter = parameter._replace(initial=copy_of(f"{stack[1]}0{stack[3]}"))
        found.append(parameter)
    return found
