"""Binary cross entropies: of probabilities (torch.nn.BCELoss), of logits (BCEWithLogitsLoss)."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Float
from simdp.workload.layers.activations.sigmoid import logistic
from simdp.workload.losses.elementwise import Elementwise

Weights = Annotated[tuple[Annotated[Float, Field(ge=0)], ...], Field(min_length=1)]


LEAST_LOG = -100.0
"""Logarithms of probabilities are at least this, as in torch, so that a loss is finite."""


class Binary(Elementwise):
    """Base: targets are shares.

    Attributes
    ----------
    weight : list of float or None
        w, one for each place of the last axis; the mean is over elements all the same.
    """

    weight: Weights | None = None

    def weighted(self, values: Array, slope: Array) -> tuple[Array, Array]:
        """Multiply both by the weight, in place."""
        if self.weight is not None:
            weight = np.asarray(self.weight, dtype=values.dtype)
            values *= weight
            slope *= weight
        return values, slope

    def drawn(self, y: Array) -> Array:
        return logistic(y)

    def problem_with_values(self, target: Array) -> str | None:
        width = target.shape[-1] if target.ndim > 1 else 1
        for key in ("weight", "pos_weight"):
            given = getattr(self, key, None)
            if given is not None and len(given) not in (1, width):
                return (
                    f"the loss has a {key} of {len(given)} values, but the last axis of y has "
                    f"{width}; give one for each."
                )
        if target.size and (target.min() < 0 or target.max() > 1):
            return (
                f"y holds {target.min()} ... {target.max()}, but {self.kind} needs shares; "
                "give values from 0 to 1."
            )
        return None


class BCE(Binary):
    """Mean over elements of ``-w (t log x + (1 - t) log(1 - x))``; predictions are probabilities.

    They must lie between 0 and 1, as behind a sigmoid; others, which torch refuses, give nan.
    """

    kind: Literal["bce"] = "bce"

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        against = 1 - prediction
        with np.errstate(divide="ignore", invalid="ignore"):
            for_it, not_it = np.log(prediction), np.log1p(-prediction)
        values = -target * np.maximum(for_it, LEAST_LOG)
        values -= (1 - target) * np.maximum(not_it, LEAST_LOG)
        slope = (prediction - target) / np.maximum(against * prediction, 1e-12)
        return self.weighted(values, slope.astype(prediction.dtype))


class BCEWithLogits(Binary):
    """Mean over elements, each of which is a yes or no of its own.

    ``-w (p t log s(x) + (1 - t) log(1 - s(x)))`` with the logistic function s.

    Attributes
    ----------
    pos_weight : list of float or None
        p, on what speaks for a class, one for each place of the last axis.
    """

    kind: Literal["bce_with_logits"] = "bce_with_logits"
    pos_weight: Weights | None = None

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        more: Array = target
        if self.pos_weight is not None:
            more = target * np.asarray(self.pos_weight, dtype=prediction.dtype)
        # log(1 + exp(-x)) and its slope, -s(-x)
        soft, against = np.logaddexp(0, -prediction), logistic(-prediction)
        both = more + (1 - target)
        return self.weighted((1 - target) * prediction + both * soft, (1 - target) - both * against)
