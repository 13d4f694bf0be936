"""Window: where the kernel of a convolution or of a pooling stands on an image.

Pairs are in the order height, width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.base import Shape, ShapeError
from simdp.workload.layers.pairs import Pair
from simdp.workload.layers.shapes import image_shape


@dataclass(frozen=True)
class Window:
    """What slides over an image.

    Attributes
    ----------
    kernel, stride, dilation : (int, int)
        As torch's arguments.
    before, after : (int, int)
        Padding above and left of the image, below and right of it.
    ceil : bool
        Whether a last window may hang over the end; it must begin on the image or left of it.
    """

    kernel: Pair
    stride: Pair
    dilation: Pair
    before: Pair
    after: Pair
    ceil: bool = False

    @property
    def reach(self) -> Pair:
        """Pixels from the first that a window sees to the last."""
        tall, wide = ((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))
        return tall, wide

    @property
    def is_pixel(self) -> bool:
        """Whether it sees each pixel alone, and all of them."""
        ones, nothing = (1, 1), (0, 0)
        return self.kernel == self.stride == ones and self.before == self.after == nothing

    def count(self, shape: Shape) -> Pair:
        """Windows along each axis of an image, shape `(channels, height, width)`.

        ``floor((length + padding - reach) / stride) + 1``; with ``ceil`` rounded up.

        Raises
        ------
        ShapeError
            If there is none.
        """
        _, height, width = image_shape(shape)
        tall, wide = self._count(0, height), self._count(1, width)
        if min(tall, wide) < 1:
            raise ShapeError(
                f"has windows of {self.reach[0]} x {self.reach[1]} pixels, but gets images of "
                f"shape {shape}, which are smaller, even with the padding; make them larger, or "
                "kernel_size smaller"
            )
        return tall, wide

    def _count(self, axis: int, length: int) -> int:
        room = length + self.before[axis] + self.after[axis] - self.reach[axis]
        step = self.stride[axis]
        if not self.ceil:
            return room // step + 1
        count = -(-room // step) + 1
        return count - 1 if (count - 1) * step >= length + self.before[axis] else count

    def span(self, count: Pair) -> Pair:
        """Pixels that so many windows go over, with the padding."""
        tall, wide = (
            (n - 1) * s + r for n, s, r in zip(count, self.stride, self.reach, strict=True)
        )
        return tall, wide

    def place(self, frame: Array, images: Array) -> None:
        """Write channels-last images into a frame of `span`, leaving the padding as it is."""
        to, source = [], []
        for axis in (0, 1):
            begin, skip = max(self.before[axis], 0), max(-self.before[axis], 0)
            length = min(images.shape[axis + 1] - skip, frame.shape[axis + 1] - begin)
            to.append(slice(begin, begin + length))
            source.append(slice(skip, skip + length))
        frame[:, to[0], to[1]] = images[:, source[0], source[1]]

    def tap(self, frame: Array, count: Pair, row: int, column: int) -> Array:
        """View of what each window sees at one place of the kernel; the frame is channels-last."""
        down = places(row * self.dilation[0], self.stride[0], count[0])
        along = places(column * self.dilation[1], self.stride[1], count[1])
        return frame[:, down, along]

    def taps(self, frame: Array, count: Pair, groups: int = 1) -> Array:
        """View of all that the windows see, of a contiguous frame; each pixel many times.

        Returns
        -------
        ndarray, shape `(groups, batch, rows, columns, kernel height, kernel width, channels)`
            The channels are those of a group. Neighbours that lie side by side in memory count
            as channels of one pixel, so that they are copied in one piece.
        """
        image, line, pixel, item = frame.strides
        (tall, wide), share = self.kernel, frame.shape[-1] // groups
        if groups == self.dilation[1] == 1:
            wide, share = 1, wide * share
        down, along = line * self.stride[0], pixel * self.stride[1]
        further = line * self.dilation[0], pixel * self.dilation[1]
        strides = (frame.shape[-1] // groups * item, image, down, along, *further, item)
        shape = (groups, len(frame), *count, tall, wide, share)
        return np.lib.stride_tricks.as_strided(frame, shape, strides, writeable=False)


def places(begin: int, step: int, count: int) -> slice:
    """So many places, a step apart."""
    return slice(begin, begin + (count - 1) * step + 1, step)
