"""LastToken: the last row of a sequence, as a classifier takes it of an LSTM."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.workload.layers.one_token import OneToken


class LastToken(OneToken):
    """``x[:, -1]``: what the model makes of the last token, which has seen all before it."""

    kind: Literal["last_token"] = "last_token"

    place: ClassVar[int] = -1
