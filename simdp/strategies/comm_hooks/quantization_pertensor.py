"""quantization_pertensor: gradients travel as bytes, with one scale for a bucket."""

from __future__ import annotations

from typing import Literal

from simdp.strategies.comm_hooks.quantization import Quantization


class QuantizationPerTensor(Quantization):
    """One scale for a bucket (torch: quantization_pertensor_hook).

    Of a rank's bucket the least and the greatest number, and 0, become 0 to 255; every rank adds
    what it gets in the order of the ranks. The arithmetic is float32's.
    """

    kind: Literal["quantization_pertensor"] = "quantization_pertensor"
