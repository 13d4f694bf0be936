"""FirstToken: the first row of a sequence, as BERT's pooler takes it."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.workload.layers.one_token import OneToken


class FirstToken(OneToken):
    """``x[:, 0]``: what the model makes of the token that stands for the whole sequence."""

    kind: Literal["first_token"] = "first_token"

    place: ClassVar[int] = 0
