"""ConvTranspose1d: from small series to large ones, as torch.nn.ConvTranspose1d."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.extents import Margin1, Size1
from simdp.workload.layers.transposed_convolution import TransposedConvolution


class ConvTranspose1d(TransposedConvolution):
    """Transposed convolution along the length."""

    kind: Literal["conv_transpose1d"] = "conv_transpose1d"
    kernel_size: Size1
    stride: Size1 = (1,)
    padding: Margin1 = (0,)
    output_padding: Margin1 = (0,)
    dilation: Size1 = (1,)
