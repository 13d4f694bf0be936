"""Window: where the kernel of a convolution or of a pooling stands on an image.

Of one axis, of two, or of three; lengths are in torch's order, such as depth, height, width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.base import Shape, ShapeError
from simdp.workload.layers.extents import Extents
from simdp.workload.layers.shapes import image_shape


@dataclass(frozen=True)
class Window:
    """What slides over an image.

    Attributes
    ----------
    kernel, stride, dilation : tuple of int
        As torch's arguments, one length for each axis.
    before, after : tuple of int
        Padding before the image and behind it: above and below, left and right.
    ceil : bool
        Whether a last window may hang over the end; it must begin on the image or before it.
    """

    kernel: Extents
    stride: Extents
    dilation: Extents
    before: Extents
    after: Extents
    ceil: bool = False

    @property
    def reach(self) -> Extents:
        """Pixels from the first that a window sees to the last."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def is_pixel(self) -> bool:
        """Whether it sees each pixel alone, and all of them."""
        return {*self.kernel, *self.stride} == {1} and {*self.before, *self.after} == {0}

    def count(self, shape: Shape) -> Extents:
        """Windows along each axis of an image, shape `(channels, height, width)` or alike.

        ``floor((length + padding - reach) / stride) + 1``; with ``ceil`` rounded up.

        Raises
        ------
        ShapeError
            If there is none.
        """
        _, *lengths = image_shape(shape, len(self.kernel))
        found = tuple(self._count(axis, length) for axis, length in enumerate(lengths))
        if min(found) < 1:
            reach = " x ".join(map(str, self.reach))
            raise ShapeError(
                f"has windows of {reach} pixels, but gets images of "
                f"shape {shape}, which are smaller, even with the padding; make them larger, or "
                "kernel_size smaller"
            )
        return found

    def _count(self, axis: int, length: int) -> int:
        room = length + self.before[axis] + self.after[axis] - self.reach[axis]
        step = self.stride[axis]
        if not self.ceil:
            return room // step + 1
        count = -(-room // step) + 1
        return count - 1 if (count - 1) * step >= length + self.before[axis] else count

    def span(self, count: Extents) -> Extents:
        """Pixels that so many windows go over, with the padding."""
        each = zip(count, self.stride, self.reach, strict=True)
        return tuple((n - 1) * s + r for n, s, r in each)

    def place(self, frame: Array, images: Array) -> None:
        """Write channels-last images into a frame of `span`, leaving the padding as it is."""
        to, source = [slice(None)], [slice(None)]
        for axis, before in enumerate(self.before):
            begin, skip = max(before, 0), max(-before, 0)
            length = min(images.shape[axis + 1] - skip, frame.shape[axis + 1] - begin)
            to.append(slice(begin, begin + length))
            source.append(slice(skip, skip + length))
        frame[tuple(to)] = images[tuple(source)]

    def tap(self, frame: Array, count: Extents, place: Sequence[int]) -> Array:
        """View of what each window sees at one place of the kernel; the frame is channels-last."""
        along = zip(place, self.dilation, self.stride, count, strict=True)
        return frame[slice(None), *(places(at * far, step, n) for at, far, step, n in along)]

    def taps(self, frame: Array, count: Extents, groups: int = 1) -> Array:
        """View of all that the windows see, of a contiguous frame; each pixel many times.

        Returns
        -------
        ndarray, shape `(groups, batch, *count, *kernel, channels)`
            The channels are those of a group. Neighbours that lie side by side in memory count
            as channels of one pixel, so that they are copied in one piece.
        """
        image, *axes, item = frame.strides
        kernel, share = list(self.kernel), frame.shape[-1] // groups
        if groups == self.dilation[-1] == 1:
            kernel[-1], share = 1, kernel[-1] * share
        further = [step * far for step, far in zip(axes, self.dilation, strict=True)]
        along = [step * far for step, far in zip(axes, self.stride, strict=True)]
        strides = (frame.shape[-1] // groups * item, image, *along, *further, item)
        shape = (groups, len(frame), *count, *kernel, share)
        return np.lib.stride_tricks.as_strided(frame, shape, strides, writeable=False)


def places(begin: int, step: int, count: int) -> slice:
    """So many places, a step apart."""
    return slice(begin, begin + (count - 1) * step + 1, step)
