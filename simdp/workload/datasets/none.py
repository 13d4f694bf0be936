"""No data set: samples that are counted, and may have lengths, but of which none is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from simdp.arrays import Array, Ints
from simdp.spec import Int, problem
from simdp.workload.datasets.base import Dataset
from simdp.workload.datasets.lengths import AnyLengths
from simdp.workload.layers.base import Shape
from simdp.workload.losses import Loss
from simdp.workload.models import Model

NUM_SAMPLES = 1024
"""Samples of an epoch where only their lengths are given, as of the data sets that are drawn."""


class NoData(Dataset):
    """For times without numbers: every step is a full one, of samples of full length or of drawn.

    Attributes
    ----------
    lengths : Lengths or None
        How many tokens samples have; by default all that the model takes, which every step then is
        as full of. A micro-batch is padded to its longest sample.
    num_samples : int or None
        Samples of an epoch, where they have lengths; 1,024 by default.
    """

    kind: Literal["none"] = "none"
    lengths: AnyLengths | None = None
    num_samples: Int | None = Field(None, ge=1, le=10**9)

    usual_loss: ClassVar[str] = "none"

    @model_validator(mode="after")
    def _counts_what_differs(self) -> Self:
        if self.num_samples is not None and self.lengths is None:
            raise problem(
                "num_samples: without lengths samples are alike, and every step is full; add "
                "lengths, or leave this out."
            )
        return self

    @property
    def has_samples(self) -> bool:
        return self.lengths is not None

    def length(self, base: Path) -> int:
        return 0 if self.lengths is None else self.num_samples or NUM_SAMPLES

    def input_shapes(self, model: Model, base: Path) -> dict[str, Shape]:
        if self.lengths is None:
            return {}
        most = self.lengths.most(model, base)
        known = [name for name in model.graph.inputs if model.num_tokens(name) is not None]
        return {name: (most + (name == "tgt"),) for name in known}

    def problem_with(self, model: Model, loss: Loss, base: Path) -> str | None:
        if self.lengths is None:
            return None
        for name, shape in zip(model.graph.inputs, model.known_shapes(), strict=True):
            if model.num_tokens(name) is None:
                return (
                    f"lengths are of tokens, but the model takes real numbers as {name}; leave "
                    "them out."
                )
            needed = self.lengths.most(model, base) + (name == "tgt")
            if needed > shape[0]:
                return (
                    f"lengths reach {needed} tokens in {name}, but the model takes {shape[0]}; "
                    "change one of them."
                )
        return None

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        return {}

    def drawn_lengths(self, model: Model, seed: int, base: Path) -> Ints | None:
        if self.lengths is None:
            return None
        most = self.lengths.most(model, base)
        return self.lengths.of_samples(self.length(base), most, seed, base)

    def lengths_of(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Ints]:
        found = self.drawn_lengths(model, seed, base)
        if found is None or self.lengths is None:
            return {}
        if self.lengths.shortest(base) == self.lengths.longest(base):
            return {}
        return {name: found + (name == "tgt") for name in model.graph.inputs}
