"""ConvTranspose3d: from small volumes to large ones, as torch.nn.ConvTranspose3d."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.extents import Margin3, Size3
from simdp.workload.layers.transposed_convolution import TransposedConvolution


class ConvTranspose3d(TransposedConvolution):
    """Transposed convolution along depth, height and width."""

    kind: Literal["conv_transpose3d"] = "conv_transpose3d"
    kernel_size: Size3
    stride: Size3 = (1, 1, 1)
    padding: Margin3 = (0, 0, 0)
    output_padding: Margin3 = (0, 0, 0)
    dilation: Size3 = (1, 1, 1)
