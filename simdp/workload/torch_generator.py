"""The numbers that torch's generator on the CPU draws from a seed, as far as orders need them."""

from __future__ import annotations

import numpy as np

from simdp.arrays import Ints


class TorchGenerator:
    """``torch.Generator().manual_seed(seed)``: a Mersenne twister, mt19937, and its use in torch.

    Parameters
    ----------
    seed : int
        Of it the lowest 32 bits count.

    References
    ----------
    torch: aten/src/ATen/core/MT19937RNGEngine.h, CPUGeneratorImpl.cpp, TensorFactories.cpp.
    """

    def __init__(self, seed: int) -> None:
        self._stream = np.random.RandomState(seed & 0xFFFFFFFF)

    def random(self, count: int) -> Ints:
        """Draw 32-bit numbers, shape `(count,)`."""
        return self._stream.randint(0, 2**32, size=count, dtype=np.uint32).astype(np.int64)

    def skip(self, count: int) -> None:
        """Draw 32-bit numbers that nobody looks at."""
        for begin in range(0, count, 2**20):
            self.random(min(2**20, count - begin))

    def random64(self) -> int:
        """Draw a 64-bit number: two of 32 bits, the first in the high half."""
        high, low = self.random(2).tolist()
        return int(high) << 32 | int(low)

    def randperm(self, n: int) -> Ints:
        """``torch.randperm(n)``: place i is swapped with i + u mod (n - i); n - 1 numbers."""
        places = np.arange(n - 1)
        partners = places + self.random(n - 1) % (n - places)
        order = list(range(n))
        for place, partner in enumerate(partners.tolist()):
            order[place], order[partner] = order[partner], order[place]
        return np.array(order, dtype=np.int64)
