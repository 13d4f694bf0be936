"""ConvTranspose2d: from small images to large ones, as torch.nn.ConvTranspose2d."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.pairs import Margin, Size
from simdp.workload.layers.transposed_convolution import TransposedConvolution


class ConvTranspose2d(TransposedConvolution):
    """Transposed convolution along height and width."""

    kind: Literal["conv_transpose2d"] = "conv_transpose2d"
    kernel_size: Size
    stride: Size = (1, 1)
    padding: Margin = (0, 0)
    output_padding: Margin = (0, 0)
    dilation: Size = (1, 1)
