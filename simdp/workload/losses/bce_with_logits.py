"""Binary cross entropy of logits, as torch.nn.BCEWithLogitsLoss."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Float
from simdp.workload.layers.activations.sigmoid import logistic
from simdp.workload.losses.elementwise import Elementwise

Weights = Annotated[tuple[Annotated[Float, Field(ge=0)], ...], Field(min_length=1)]


class BCEWithLogits(Elementwise):
    """Mean over elements, each of which is a yes or no of its own.

    ``-w (p t log s(x) + (1 - t) log(1 - s(x)))`` with the logistic function s.

    Attributes
    ----------
    weight : list of float or None
        w, one for each place of the last axis; the mean is over elements all the same.
    pos_weight : list of float or None
        p, on what speaks for a class, one for each place of the last axis.
    """

    kind: Literal["bce_with_logits"] = "bce_with_logits"
    weight: Weights | None = None
    pos_weight: Weights | None = None

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        more: Array = target
        if self.pos_weight is not None:
            more = target * np.asarray(self.pos_weight, dtype=prediction.dtype)
        # log(1 + exp(-x)) and its slope, -s(-x)
        soft, against = np.logaddexp(0, -prediction), logistic(-prediction)
        both = more + (1 - target)
        values, slope = (1 - target) * prediction + both * soft, (1 - target) - both * against
        if self.weight is not None:
            weight = np.asarray(self.weight, dtype=prediction.dtype)
            values *= weight
            slope *= weight
        return values, slope

    def drawn(self, y: Array) -> Array:
        return logistic(y)

    def problem_with_values(self, target: Array) -> str | None:
        width = target.shape[-1] if target.ndim > 1 else 1
        for key in ("weight", "pos_weight"):
            given = getattr(self, key)
            if given is not None and len(given) not in (1, width):
                return (
                    f"the loss has a {key} of {len(given)} values, but the last axis of y has "
                    f"{width}; give one for each."
                )
        if target.size and (target.min() < 0 or target.max() > 1):
            return (
                f"y holds {target.min()} ... {target.max()}, but bce_with_logits needs shares; "
                "give values from 0 to 1."
            )
        return None
