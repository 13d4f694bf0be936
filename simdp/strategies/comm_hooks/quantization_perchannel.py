"""quantization_perchannel: gradients travel as bytes, with one scale for 512 of them."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.strategies.comm_hooks.quantization import Quantization


class QuantizationPerChannel(Quantization):
    """One scale for each 512 numbers of a bucket (torch: quantization_perchannel_hook).

    The last 512 are filled up with zeros; where nothing is missing, torch adds 512 zeros.
    """

    kind: Literal["quantization_perchannel"] = "quantization_perchannel"
    row: ClassVar[int | None] = 512
